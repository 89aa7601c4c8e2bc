/* Products of a few rows with a matrix (outer, inner) of small integers: codes of 8 bits, signed, or of 4 bits, unsigned,
   32 of them in 16 bytes (the low half of byte i is code i, the high one code i + 16); float16 scales, one for each block
   of codes along the inner axis; and as many float16 offsets, or none. An element is scale * code + offset.

   `packed_product` takes any number of rows, and never stores elements. `packed_elements` makes them all. */

#include "shared.h"

enum { PIECE = 256 };

/* What is known of a matrix of codes. */
typedef struct Codes {
  int64_t block; /* of codes that share a scale */
  const uint16_t *scales, *offsets;
} Codes;

typedef int8_t bytes __attribute__((vector_size(LANES)));

INLINE float from_half(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#elif defined(__aarch64__)
  __fp16 value;
  memcpy(&value, &half, sizeof value);
  return value;
#else
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 1023, bits;
  if (exponent == 0) {
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
  }
  bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | rest << 13;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

/* LANES codes as numbers: bytes, or the low or the high halves of bytes. */
INLINE vector decoded(const uint8_t *from, const int bits, const int is_high) {
  integers wide;
#if defined(__AVX512F__)
  __m128i some = _mm_loadu_si128((const __m128i *)from);
  wide = (integers)(bits == 8 ? _mm512_cvtepi8_epi32(some) : _mm512_cvtepu8_epi32(some));
#elif defined(__AVX2__)
  __m128i some = _mm_loadl_epi64((const __m128i *)from);
  wide = (integers)(bits == 8 ? _mm256_cvtepi8_epi32(some) : _mm256_cvtepu8_epi32(some));
#else /* gcc makes single conversions of this where registers are longer */
  bytes some;
  memcpy(&some, from, sizeof some);
  wide = __builtin_convertvector(some, integers);
#endif
  if (bits == 4) wide = is_high ? wide >> 4 & 15 : wide & 15;
#if defined(__AVX512F__)
  return (vector)_mm512_cvtepi32_ps((__m512i)wide);
#elif defined(__AVX2__)
  return (vector)_mm256_cvtepi32_ps((__m256i)wide);
#else
  return __builtin_convertvector(wide, vector);
#endif
}

/* What makes numbers of the codes of a block. With 16 lanes all numbers that 4 bits can stand for are a table. */
typedef struct {
  vector scale, offset;
} Block;

INLINE Block block_of(const int bits, float scale, float offset) {
  Block made = {scale - (vector){0}, offset - (vector){0}};
#if defined(__AVX512F__)
  const vector all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (bits == 4) made.scale = all * made.scale + made.offset;
#endif
  return made;
}

INLINE vector numbers(const uint8_t *from, const int bits, const int is_high, Block block) {
#if defined(__AVX512F__)
  if (bits == 4) {
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
    return (vector)_mm512_permutexvar_ps(is_high ? _mm512_srli_epi32(codes, 4) : codes, (__m512)block.scale);
  }
#endif
  return decoded(from, bits, is_high) * block.scale + block.offset;
}

/* Scales and offsets of some blocks of a column as floats; offsets are zero if there are none. */
typedef struct {
  float scales[PIECE], offsets[PIECE];
} Factors;

INLINE void widened(const uint16_t *from, int64_t count, float *made) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(made + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
#endif
  for (; i < count; i++) made[i] = from_half(from[i]);
}

INLINE void factors_of(const Codes *own, int64_t at, int64_t count, Factors *made) {
  widened(own->scales + at, count, made->scales);
  if (own->offsets == NULL) memset(made->offsets, 0, count * sizeof(float));
  else widened(own->offsets + at, count, made->offsets);
}

/* As `across`, for codes: a column is decoded once for all rows. */
INLINE void packed(const int rows, const int columns, const int bits, const Product *p, const float *x, int64_t n,
                   float *y, int64_t ahead) {
  vector made[ROWS][COLUMNS] = {{{0}}};
  const int step = 128 / bits;
  const Codes *own = p->codes;
  const int64_t inner = p->inner, bytes = inner * bits / 8, blocks = inner / own->block, steps = own->block / step;
  const uint8_t *codes = (const uint8_t *)p->matrix + n * bytes;
  for (int64_t begin = 0; begin < blocks; begin += PIECE) {
    const int64_t count = smaller(PIECE, blocks - begin);
    Factors factors[COLUMNS];
    for (int c = 0; c < columns; c++) factors_of(own, (n + c) * blocks + begin, count, &factors[c]);
    for (int64_t b = 0; b < count; b++) {
      Block block[COLUMNS];
      UNROLLED for (int c = 0; c < columns; c++)
        block[c] = block_of(bits, factors[c].scales[b], factors[c].offsets[b]);
      for (int64_t k = 0; k < steps; k++, codes += 16, x += step) {
        UNROLLED for (int c = 0; c < columns; c++) __builtin_prefetch(codes + c * bytes + ahead, 0, 1);
        UNROLLED for (int i = 0; i < step; i += LANES) {
          vector column[COLUMNS];
          UNROLLED for (int c = 0; c < columns; c++) {
            const uint8_t *from = codes + c * bytes + i % 16;
            column[c] = numbers(from, bits, i >= 16, block[c]);
            KEEP(column[c]);
          }
          UNROLLED for (int r = 0; r < rows; r++) {
            vector row = several(x + r * inner, i, 0);
            UNROLLED for (int c = 0; c < columns; c++) made[r][c] += row * column[c];
          }
        }
      }
    }
  }
  UNROLLED for (int r = 0; r < rows; r++) {
    four total = sums(made[r][0], made[r][1], made[r][2], made[r][3]);
    memcpy(y + r * p->outer, &total, columns * sizeof(float));
  }
}

/* Some columns of codes as numbers. */
INLINE void unpack(const int bits, const Product *p, int64_t first, int64_t columns, float *made) {
  const int step = 128 / bits;
  const Codes *own = p->codes;
  const int64_t blocks = p->inner / own->block, steps = own->block / step;
  const uint8_t *codes = (const uint8_t *)p->matrix + first * p->inner * bits / 8;
  for (int64_t b = first * blocks; b < (first + columns) * blocks; b += PIECE) {
    const int64_t count = smaller(PIECE, (first + columns) * blocks - b);
    Factors factors;
    factors_of(own, b, count, &factors);
    for (int64_t n = 0; n < count; n++) {
      Block block = block_of(bits, factors.scales[n], factors.offsets[n]);
      for (int64_t k = 0; k < steps; k++, codes += 16, made += step)
        UNROLLED for (int i = 0; i < step; i += LANES) {
          vector some = numbers(codes + i % 16, bits, i >= 16, block);
          memcpy(made + i, &some, sizeof some);
        }
    }
  }
}

INLINE void tile_packed(const int bits, const Product *p, int64_t first, int64_t end) {
  int64_t block = COLUMNS * p->inner * bits / 8, ahead = block * (1 + AHEAD / (block + 1));
  for (int64_t n = first; n < end;) {
    int columns = n + COLUMNS <= end ? COLUMNS : 1;
    for (int64_t r = 0; r < p->rows; r += ROWS) {
      const float *x = p->x + r * p->inner;
      float *y = p->y + r * p->outer + n;
      if (columns == COLUMNS) FOR_ROWS(p->rows - r, packed, COLUMNS, bits, p, x, n, y, ahead)
      else FOR_ROWS(p->rows - r, packed, 1, bits, p, x, n, y, ahead)
    }
    n += columns;
  }
}

static void tile_elements(const Product *p, int64_t number) {
  int64_t first = number * p->width, count = smaller(p->width, p->outer - first);
  if (p->bits == 8) unpack(8, p, first, count, p->y + first * p->inner);
  else unpack(4, p, first, count, p->y + first * p->inner);
}

static void tile(const Product *p, int64_t number) {
  int64_t first = number * p->width, end = smaller(first + p->width, p->outer);
  if (p->bits == 8) tile_packed(8, p, first, end);
  else tile_packed(4, p, first, end);
}

static int64_t size_of(const XLA_FFI_Buffer *buffer) {
  int64_t elements = 1;
  for (int64_t axis = 0; axis < buffer->rank; axis++) elements *= buffer->dims[axis];
  return elements;
}

/* The codes, scales and perhaps offsets among the operands from `first` on, of a matrix (outer, inner), or what is wrong. */
static const char *read_codes(const XLA_FFI_CallFrame *frame, int64_t first, Product *p, Codes *own) {
  int64_t count = frame->args.size - first;
  if ((count != 2 && count != 3) || frame->rets.size != 1) return "packed rows: codes, scales, perhaps offsets; one result";
  const XLA_FFI_Buffer *codes = frame->args.args[first], *scales = frame->args.args[first + 1];
  const XLA_FFI_Buffer *offsets = count == 3 ? frame->args.args[first + 2] : NULL, *y = frame->rets.rets[0];
  p->bits = codes->dtype == XLA_FFI_DataType_S8 ? 8 : 4;
  if (y->rank != 2 || y->dtype != XLA_FFI_DataType_F32 || (p->bits == 4 && codes->dtype != XLA_FFI_DataType_U8) ||
      scales->dtype != XLA_FFI_DataType_F16 || (offsets != NULL && offsets->dtype != XLA_FFI_DataType_F16))
    return "packed rows: float32, codes of 8 or 4 bits, scales and offsets of float16";
  int64_t each = p->inner * p->outer, least = p->bits == 8 ? 16 : 32, scaled = size_of(scales);
  own->block = scaled ? each / scaled : 0;
  if (size_of(codes) * 8 != each * p->bits || (offsets != NULL && size_of(offsets) != scaled) ||
      (each && (own->block * scaled != each || own->block < 1 || p->inner % own->block || own->block % least)))
    return "packed rows: shapes that do not belong together";
  own->scales = scales->data;
  own->offsets = offsets == NULL ? NULL : offsets->data;
  p->batch = 1;
  p->matrix = codes->data;
  p->y = y->data;
  p->codes = own;
  return NULL;
}

/* Rows (rows, inner), codes, scales and, if there are any, offsets; the result is (rows, outer). */
XLA_FFI_Error *packed_product(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  const XLA_FFI_Buffer *x = frame->args.args[0], *y = frame->rets.rets[0];
  if (x->rank != 2 || y->rank != 2 || x->dtype != XLA_FFI_DataType_F32 || y->dims[0] != x->dims[0])
    return failed(frame->api, "packed rows: rows of float32, and as many results");
  Codes own = {0};
  Product p = {.tile = tile, .again = (x->dims[0] + ROWS - 1) / ROWS, .rows = x->dims[0], .inner = x->dims[1],
               .outer = y->dims[1], .x = x->data};
  const char *wrong = read_codes(frame, 1, &p, &own);
  if (wrong != NULL) return failed(frame->api, wrong);
  if (p.rows && p.inner && p.outer) share_out(frame, &p);
  return NULL;
}

/* Codes, scales and, if there are any, offsets; the result are the elements, (outer, inner). */
XLA_FFI_Error *packed_elements(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  Codes own = {0};
  Product p = {.tile = tile_elements, .again = 8, .rows = 1, .inner = y->dims[1], .outer = y->dims[0]};
  const char *wrong = read_codes(frame, 0, &p, &own);
  if (wrong != NULL) return failed(frame->api, wrong);
  if (p.inner && p.outer) share_out(frame, &p);
  return NULL;
}
