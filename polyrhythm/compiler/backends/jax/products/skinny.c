/* Products of a few rows with matrices, at the speed at which memory delivers the matrices.

   rows (batch, rows, inner) times matrix (batch, outer, inner), `skinny_across`, or (batch, inner, outer),
   `skinny_along`; without its batch if all share one; of whatever shape the elements have, since a reshape before the
   call can make XLA copy a buffer. lengths, int32, one for each of the batch or one for all: how much of the outer axis
   counts (across; the rest of the result is zero), or of the inner one (along). The result is (batch, rows, outer) in
   float32. Rows are float32, a matrix is float32 or bfloat16, and sums are float32.

   `skinny_packed` takes a matrix (outer, inner) of small integers instead: codes of 8 bits, signed, or of 4 bits, unsigned,
   32 of them in 16 bytes (the low half of byte i is code i, the high one code i + 16); float16 scales, one for each block
   of codes along the inner axis; and as many float16 offsets, or none. An element is scale * code + offset. It takes any
   number of rows: with many of them columns are decoded once and kept for all rows.

   The matrix is read from memory once, for all rows; the next rows of it are asked for in time. Tiles of the matrix are
   shared out among the threads of XLA's pool: whoever is free takes the next one, so the caller waits for tiles that
   others have begun, and for nothing else that they have to do. A sum is made by one thread in one order: results
   depend neither on the number of threads nor on the lengths. */

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/c_api.h"

/* As many rows and columns at once as there are registers for their sums. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 4, COLUMNS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 2, COLUMNS = 4 };
#else
enum { LANES = 4, ROWS = 2, COLUMNS = 4 };
#endif
enum { INNER = 128, AHEAD = 4096, MANY = 8, PANEL = 32 };

/* A value that has to stay in a register: without this gcc reads it from memory at each use. */
#if defined(__x86_64__)
#define KEEP(value) __asm__("" : "+v"(value))
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define KEEP(value) __asm__("" : "+w"(value))
#define PAUSE() __asm__ volatile("yield")
#else
#define KEEP(value)
#define PAUSE()
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));

typedef struct {
  int is_along, is_half, has_length_each;
  int bits; /* of an element of the matrix */
  int64_t batch, rows, inner, outer;
  int64_t matrix_stride; /* from one matrix of the batch to the next; 0 if all share one */
  const float *x;
  const void *matrix;
  const int32_t *lengths;
  int64_t block; /* of codes that share a scale */
  const uint16_t *scales, *offsets;
  float *y;
  int64_t tile, tiles_each, tiles;
} Product;

typedef struct {
  Product product;
  atomic_llong next, finished;
  atomic_int references;
} Job;

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE float one(const void *matrix, int64_t at, int is_half) {
  if (!is_half) return ((const float *)matrix)[at];
  uint32_t bits = (uint32_t)((const uint16_t *)matrix)[at] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE vector several(const void *matrix, int64_t at, int is_half) {
  vector value;
  if (is_half) {
    halves half;
    memcpy(&half, (const uint16_t *)matrix + at, sizeof half);
    words wide = __builtin_convertvector(half, words) << 16;
    memcpy(&value, &wide, sizeof value);
  } else {
    memcpy(&value, (const float *)matrix + at, sizeof value);
  }
  KEEP(value);
  return value;
}

/* The first `count` numbers of a vector, and zeros. */
INLINE vector some(const void *matrix, int64_t at, int64_t count, int is_half) {
  if (count == LANES) return several(matrix, at, is_half);
  vector value = {0};
  for (int64_t i = 0; i < count; i++) value[i] = one(matrix, at + i, is_half);
  return value;
}

INLINE void ask_for(const void *matrix, int64_t at, int is_half) {
  __builtin_prefetch((const char *)matrix + at * (is_half ? 2 : 4), 0, 1);
}

typedef float four __attribute__((vector_size(16)));

#if defined(__has_builtin) && !defined(NO_SHUFFLE)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE
#endif
#endif

/* Four numbers whose sum is that of a vector. */
INLINE four folded(vector value) {
#if defined(HAS_SHUFFLE) && defined(__AVX512F__)
  typedef float eight __attribute__((vector_size(32)));
  eight part = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(part, part, 0, 1, 2, 3) + __builtin_shufflevector(part, part, 4, 5, 6, 7);
#elif defined(HAS_SHUFFLE) && defined(__AVX__)
  return __builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7);
#else
  four part = {value[0], value[1], value[2], value[3]};
  UNROLLED for (int i = 4; i < LANES; i++) part[i % 4] += value[i];
  return part;
#endif
}

/* The sums of four vectors. */
INLINE four sums(vector a, vector b, vector c, vector d) {
  four w = folded(a), x = folded(b), y = folded(c), z = folded(d);
#if defined(HAS_SHUFFLE)
  four left = __builtin_shufflevector(w, x, 0, 4, 1, 5) + __builtin_shufflevector(w, x, 2, 6, 3, 7);
  four right = __builtin_shufflevector(y, z, 0, 4, 1, 5) + __builtin_shufflevector(y, z, 2, 6, 3, 7);
  return __builtin_shufflevector(left, right, 0, 1, 4, 5) + __builtin_shufflevector(left, right, 2, 3, 6, 7);
#else
  return (four){w[0] + w[1] + w[2] + w[3], x[0] + x[1] + x[2] + x[3], y[0] + y[1] + y[2] + y[3],
                z[0] + z[1] + z[2] + z[3]};
#endif
}

/* y[r, c] = sum of x[r, :] * matrix[c, :] for some rows and columns; `ahead` is what will be wanted next. */
INLINE void across(const int rows, const int columns, const int is_half, const Product *p, const float *x,
                   int64_t matrix, float *y, int64_t ahead) {
  vector made[ROWS][COLUMNS] = {{{0}}};
  int64_t k = 0, inner = p->inner;
  for (; k + LANES <= inner; k += LANES) {
    vector column[COLUMNS];
    UNROLLED for (int c = 0; c < columns; c++) {
      column[c] = several(p->matrix, matrix + c * inner + k, is_half);
      ask_for(p->matrix, matrix + ahead + c * inner + k, is_half);
    }
    UNROLLED for (int r = 0; r < rows; r++) {
      vector row = several(x, r * inner + k, 0);
      UNROLLED for (int c = 0; c < columns; c++) made[r][c] += row * column[c];
    }
  }
  if (k < inner) {
    vector column[COLUMNS];
    UNROLLED for (int c = 0; c < columns; c++) column[c] = some(p->matrix, matrix + c * inner + k, inner - k, is_half);
    UNROLLED for (int r = 0; r < rows; r++) {
      vector row = some(x, r * inner + k, inner - k, 0);
      UNROLLED for (int c = 0; c < columns; c++) made[r][c] += row * column[c];
    }
  }
  UNROLLED for (int r = 0; r < rows; r++) {
    four total = sums(made[r][0], made[r][1], made[r][2], made[r][3]);
    memcpy(y + r * p->outer, &total, columns * sizeof(float));
  }
}

/* y[r, :] += sum of x[r, k] * matrix[k, :] for some k, in `columns` vectors, or in one of `width` numbers; y is begun
   where k is 0. */
INLINE void along(const int rows, const int columns, const int is_half, const Product *p, const float *x,
                  int64_t matrix, float *y, int64_t first, int64_t end, int64_t width) {
  vector made[ROWS][COLUMNS] = {{{0}}};
  if (first)
    UNROLLED for (int r = 0; r < rows; r++) {
      UNROLLED for (int c = 0; c < columns; c++) made[r][c] = some(y, r * p->outer + c * LANES, width, 0);
    }
  for (int64_t k = first; k < end; k++) {
    vector column[COLUMNS];
    int64_t at = matrix + k * p->outer, ahead = (1 + AHEAD / 4 / p->outer) * p->outer;
    UNROLLED for (int c = 0; c < columns; c++) {
      column[c] = some(p->matrix, at + c * LANES, width, is_half);
      ask_for(p->matrix, at + ahead + c * LANES, is_half);
    }
    UNROLLED for (int r = 0; r < rows; r++) {
      float row = x[r * p->inner + k];
      UNROLLED for (int c = 0; c < columns; c++) made[r][c] += row * column[c];
    }
  }
  UNROLLED for (int r = 0; r < rows; r++) {
    UNROLLED for (int c = 0; c < columns; c++) memcpy(y + r * p->outer + c * LANES, &made[r][c], width * sizeof(float));
  }
}

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

/* What a block needs to make numbers of its codes. With 16 lanes all numbers that 4 bits can stand for are a table. */
typedef struct {
  vector scale, offset;
} Factors;

INLINE Factors factors_of(const Product *p, int64_t at, const int bits) {
  float scale = from_half(p->scales[at]), offset = p->offsets == NULL ? 0 : from_half(p->offsets[at]);
  Factors made = {scale - (vector){0}, offset - (vector){0}};
#if defined(__AVX512F__)
  const vector codes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (bits == 4) made.scale = codes * made.scale + made.offset;
#endif
  return made;
}

INLINE vector numbers(const uint8_t *from, const int bits, const int is_high, Factors factors) {
#if defined(__AVX512F__)
  if (bits == 4) {
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
    return (vector)_mm512_permutexvar_ps(is_high ? _mm512_srli_epi32(codes, 4) : codes, (__m512)factors.scale);
  }
#endif
  return decoded(from, bits, is_high) * factors.scale + factors.offset;
}

/* As `across`, for codes: a column is decoded once for all rows. */
INLINE void packed(const int rows, const int columns, const int bits, const Product *p, const float *x, int64_t matrix,
                   float *y, int64_t ahead) {
  vector made[ROWS][COLUMNS] = {{{0}}};
  const int step = bits == 8 ? 16 : 32;
  int64_t inner = p->inner, blocks = inner / p->block, first = matrix / inner * blocks;
  const uint8_t *codes = (const uint8_t *)p->matrix + matrix * bits / 8;
  for (int64_t b = 0; b < blocks; b++) {
    Factors factors[COLUMNS];
    UNROLLED for (int c = 0; c < columns; c++) factors[c] = factors_of(p, first + c * blocks + b, bits);
    for (int64_t k = b * p->block; k < (b + 1) * p->block; k += step) {
      UNROLLED for (int c = 0; c < columns; c++)
        __builtin_prefetch(codes + (c * inner + k + ahead) * bits / 8, 0, 1);
      UNROLLED for (int i = 0; i < step; i += LANES) {
        vector column[COLUMNS];
        UNROLLED for (int c = 0; c < columns; c++) {
          const uint8_t *from = codes + (c * inner + k) * bits / 8 + i % 16;
          column[c] = numbers(from, bits, i >= 16, factors[c]);
          KEEP(column[c]);
        }
        UNROLLED for (int r = 0; r < rows; r++) {
          vector row = several(x, r * inner + k + i, 0);
          UNROLLED for (int c = 0; c < columns; c++) made[r][c] += row * column[c];
        }
      }
    }
  }
  UNROLLED for (int r = 0; r < rows; r++) {
    four total = sums(made[r][0], made[r][1], made[r][2], made[r][3]);
    memcpy(y + r * p->outer, &total, columns * sizeof(float));
  }
}

/* A call of a kernel above with as many rows as there are, all else known to the compiler. */
#define FOR_ROWS(count, kernel, columns, is_half, ...)                   \
  switch (smaller(count, ROWS)) {                                        \
    case 1: kernel(1, columns, is_half, __VA_ARGS__); break;             \
    case 2: kernel(2, columns, is_half, __VA_ARGS__); break;             \
    case 3: kernel(smaller(3, ROWS), columns, is_half, __VA_ARGS__); break; \
    default: kernel(ROWS, columns, is_half, __VA_ARGS__);                \
  }

INLINE void tile_across(const int is_half, const Product *p, int64_t b, int64_t first, int64_t end) {
  int64_t matrix = b * p->matrix_stride, block = COLUMNS * p->inner;
  int64_t ahead = block * (1 + AHEAD / 4 / (block + 1));
  for (int64_t n = first; n < end;) {
    int columns = n + COLUMNS <= end ? COLUMNS : 1;
    for (int64_t r = 0; r < p->rows; r += ROWS) {
      const float *x = p->x + (b * p->rows + r) * p->inner;
      float *y = p->y + (b * p->rows + r) * p->outer + n;
      int64_t at = matrix + n * p->inner;
      if (columns == COLUMNS) FOR_ROWS(p->rows - r, across, COLUMNS, is_half, p, x, at, y, ahead)
      else FOR_ROWS(p->rows - r, across, 1, is_half, p, x, at, y, ahead)
    }
    n += columns;
  }
}

/* Some columns of codes as numbers. */
INLINE void unpack(const int bits, const Product *p, int64_t first, int64_t columns, float *made) {
  const int step = bits == 8 ? 16 : 32;
  int64_t blocks = p->inner / p->block;
  for (int64_t n = first; n < first + columns; n++) {
    const uint8_t *codes = (const uint8_t *)p->matrix + n * p->inner * bits / 8;
    for (int64_t b = 0; b < blocks; b++) {
      Factors factors = factors_of(p, n * blocks + b, bits);
      for (int64_t k = b * p->block; k < (b + 1) * p->block; k += step)
        UNROLLED for (int i = 0; i < step; i += LANES) {
          vector some = numbers(codes + k * bits / 8 + i % 16, bits, i >= 16, factors);
          memcpy(made + (n - first) * p->inner + k + i, &some, sizeof some);
        }
    }
  }
}

/* With many rows columns are made numbers first, PANEL at a time, and multiplied as those of any matrix. */
INLINE int tile_unpacked(const int bits, const Product *p, int64_t first, int64_t end) {
  float *panel = malloc(PANEL * p->inner * sizeof *panel);
  if (panel == NULL) return 0;
  Product q = *p;
  q.matrix = panel;
  for (int64_t n = first; n < end; n += PANEL) {
    int64_t count = smaller(PANEL, end - n);
    unpack(bits, p, n, count, panel);
    for (int64_t r = 0; r < p->rows; r += ROWS) {
      const float *x = p->x + r * p->inner;
      float *y = p->y + r * p->outer + n;
      int64_t c = 0;
      for (; c + COLUMNS <= count; c += COLUMNS)
        FOR_ROWS(p->rows - r, across, COLUMNS, 0, &q, x, c * p->inner, y + c, 0)
      for (; c < count; c++) FOR_ROWS(p->rows - r, across, 1, 0, &q, x, c * p->inner, y + c, 0)
    }
  }
  free(panel);
  return 1;
}

INLINE void tile_packed(const int bits, const Product *p, int64_t first, int64_t end) {
  if (p->rows > MANY && tile_unpacked(bits, p, first, end)) return;
  int64_t block = COLUMNS * p->inner, ahead = block * (1 + AHEAD * 8 / bits / (block + 1));
  for (int64_t n = first; n < end;) {
    int columns = n + COLUMNS <= end ? COLUMNS : 1;
    for (int64_t r = 0; r < p->rows; r += ROWS) {
      const float *x = p->x + r * p->inner;
      float *y = p->y + r * p->outer + n;
      if (columns == COLUMNS) FOR_ROWS(p->rows - r, packed, COLUMNS, bits, p, x, n * p->inner, y, ahead)
      else FOR_ROWS(p->rows - r, packed, 1, bits, p, x, n * p->inner, y, ahead)
    }
    n += columns;
  }
}

INLINE void tile_along(const int is_half, const Product *p, int64_t b, int64_t first, int64_t end, int64_t length) {
  int64_t matrix = b * p->matrix_stride;
  for (int64_t k = 0; k == 0 || k < length; k += INNER) {
    int64_t until = smaller(k + INNER, length);
    for (int64_t n = first; n < end; n += n + COLUMNS * LANES <= end ? COLUMNS * LANES : LANES) {
      int64_t width = smaller(end - n, LANES);
      for (int64_t r = 0; r < p->rows; r += ROWS) {
        const float *x = p->x + (b * p->rows + r) * p->inner;
        float *y = p->y + (b * p->rows + r) * p->outer + n;
        if (n + COLUMNS * LANES <= end)
          FOR_ROWS(p->rows - r, along, COLUMNS, is_half, p, x, matrix + n, y, k, until, LANES)
        else if (width == LANES) FOR_ROWS(p->rows - r, along, 1, is_half, p, x, matrix + n, y, k, until, LANES)
        else FOR_ROWS(p->rows - r, along, 1, is_half, p, x, matrix + n, y, k, until, width)
      }
    }
  }
}

static int64_t length_of(const Product *p, int64_t b) {
  int64_t whole = p->is_along ? p->inner : p->outer;
  if (p->lengths == NULL) return whole;
  int64_t given = p->lengths[p->has_length_each ? b : 0];
  return given < 0 ? 0 : smaller(given, whole);
}

static void tile(const Product *p, int64_t number) {
  int64_t b = number / p->tiles_each, first = number % p->tiles_each * p->tile, end = smaller(first + p->tile, p->outer);
  if (p->scales != NULL) {
    if (p->bits == 8) tile_packed(8, p, first, end);
    else tile_packed(4, p, first, end);
    return;
  }
  int64_t length = length_of(p, b);
  if (p->is_along) {
    if (p->is_half) tile_along(1, p, b, first, end, length);
    else tile_along(0, p, b, first, end, length);
    return;
  }
  int64_t counting = length < first ? first : smaller(end, length);
  if (p->is_half) tile_across(1, p, b, first, counting);
  else tile_across(0, p, b, first, counting);
  for (int64_t r = 0; r < p->rows; r++)
    memset(p->y + (b * p->rows + r) * p->outer + counting, 0, (end - counting) * sizeof(float));
}

static void work(Job *job) {
  for (;;) {
    int64_t number = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (number >= job->product.tiles) return;
    tile(&job->product, number);
    atomic_fetch_add_explicit(&job->finished, 1, memory_order_release);
  }
}

static void release(Job *job) {
  if (atomic_fetch_sub(&job->references, 1) == 1) free(job);
}

static void help(void *job) {
  work(job);
  release(job);
}

static XLA_FFI_Error *failed(const XLA_FFI_Api *api, const char *message) {
  XLA_FFI_Error_Create_Args error = {sizeof error, NULL, message, XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return api->XLA_FFI_Error_Create(&error);
}

/* Whether a call of XLA's went wrong; what it says of it is let go. */
static int is_error(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  if (error == NULL) return 0;
  XLA_FFI_Error_Destroy_Args gone = {sizeof gone, NULL, error};
  api->XLA_FFI_Error_Destroy(&gone);
  return 1;
}

/* Tell XLA which version of its interface this was compiled with. */
static int is_question(const XLA_FFI_CallFrame *frame) {
  if (frame->extension_start == NULL || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  metadata->state_type_id.type_id = 0;
  return 1;
}

enum { ALONE = 1 << 18, LEAST_TILE = 1 << 14, MOST_TILE = 1 << 18 };

/* Wait for the tiles that others have begun. */
static void wait_for(Job *job) {
  for (int spins = 0; atomic_load_explicit(&job->finished, memory_order_acquire) < job->product.tiles; spins++) {
    if (spins < 1000) PAUSE();
    else sched_yield();
  }
}

static void share_out(const XLA_FFI_CallFrame *frame, Product *p) {
  int64_t lengths = 0, threads = 1;
  for (int64_t b = 0; b < p->batch; b++) lengths += length_of(p, b);
  int64_t bytes = lengths * (p->is_along ? p->outer : p->inner) * p->bits / 8;
  int64_t again = p->scales != NULL && p->rows > MANY ? p->rows / MANY : 1; /* how often a byte is worked with */
  if (bytes * again >= ALONE) {
    XLA_FFI_ThreadPool_NumThreads_Args count = {sizeof count, NULL, frame->ctx, &threads};
    if (is_error(frame->api, frame->api->XLA_FFI_ThreadPool_NumThreads(&count))) threads = 1;
  }
  int64_t wish = bytes / (4 * threads), step = p->is_along ? COLUMNS * LANES : COLUMNS;
  wish = wish < LEAST_TILE ? LEAST_TILE : smaller(wish, MOST_TILE);
  int64_t row = (p->is_along ? lengths / p->batch : p->inner) * p->bits / 8, steps = wish / (row * step + 1);
  p->tile = threads == 1 ? p->outer : step * (steps < 1 ? 1 : steps);
  p->tiles_each = (p->outer + p->tile - 1) / p->tile;
  p->tiles = p->batch * p->tiles_each;
  int64_t helpers = smaller(threads, p->tiles) - 1;
  Job *job = helpers < 1 ? NULL : calloc(1, sizeof *job);
  if (job == NULL) {
    for (int64_t number = 0; number < p->tiles; number++) tile(p, number);
    return;
  }
  job->product = *p;
  atomic_store(&job->references, (int)helpers + 1);
  for (int64_t i = 0; i < helpers; i++) {
    XLA_FFI_ThreadPool_Schedule_Args task = {sizeof task, NULL, frame->ctx, help, job};
    if (is_error(frame->api, frame->api->XLA_FFI_ThreadPool_Schedule(&task))) release(job);
  }
  work(job);
  wait_for(job);
  release(job);
}

static XLA_FFI_Error *product(const XLA_FFI_CallFrame *frame, int is_along) {
  if (is_question(frame)) return NULL;
  if (frame->args.size != 3 || frame->rets.size != 1) return failed(frame->api, "few rows: three operands, one result");
  const XLA_FFI_Buffer *x = frame->args.args[0], *matrix = frame->args.args[1], *lengths = frame->args.args[2];
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  if (x->rank != 3 || y->rank != 3 || lengths->rank != 1)
    return failed(frame->api, "few rows: arrays of three axes, and one of lengths");
  int is_half = matrix->dtype == XLA_FFI_DataType_BF16;
  if (x->dtype != XLA_FFI_DataType_F32 || y->dtype != XLA_FFI_DataType_F32 ||
      (!is_half && matrix->dtype != XLA_FFI_DataType_F32) || lengths->dtype != XLA_FFI_DataType_S32)
    return failed(frame->api, "few rows: float32, or a matrix of bfloat16, and lengths of int32");
  int64_t batch = x->dims[0], inner = x->dims[2], outer = y->dims[2];
  int64_t each = inner * outer, elements = 1;
  for (int64_t axis = 0; axis < matrix->rank; axis++) elements *= matrix->dims[axis];
  if ((elements != each && elements != batch * each) || y->dims[0] != batch || y->dims[1] != x->dims[1] ||
      (lengths->dims[0] != 1 && lengths->dims[0] != batch))
    return failed(frame->api, "few rows: shapes that do not belong together");
  Product p = {.is_along = is_along, .is_half = is_half, .has_length_each = lengths->dims[0] != 1,
               .bits = is_half ? 16 : 32,
               .batch = batch, .rows = x->dims[1], .inner = inner, .outer = outer,
               .matrix_stride = elements == each ? 0 : each,
               .x = x->data, .matrix = matrix->data, .lengths = lengths->data, .y = y->data};
  if (batch && p.rows && outer) share_out(frame, &p);
  return NULL;
}

XLA_FFI_Error *skinny_across(XLA_FFI_CallFrame *frame) { return product(frame, 0); }
XLA_FFI_Error *skinny_along(XLA_FFI_CallFrame *frame) { return product(frame, 1); }

static int64_t size_of(const XLA_FFI_Buffer *buffer) {
  int64_t elements = 1;
  for (int64_t axis = 0; axis < buffer->rank; axis++) elements *= buffer->dims[axis];
  return elements;
}

/* Rows (rows, inner), codes, scales and, if there are any, offsets; the result is (rows, outer). */
XLA_FFI_Error *skinny_packed(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  if ((frame->args.size != 3 && frame->args.size != 4) || frame->rets.size != 1)
    return failed(frame->api, "packed rows: three or four operands, one result");
  const XLA_FFI_Buffer *x = frame->args.args[0], *codes = frame->args.args[1], *scales = frame->args.args[2];
  const XLA_FFI_Buffer *offsets = frame->args.size == 4 ? frame->args.args[3] : NULL, *y = frame->rets.rets[0];
  int bits = codes->dtype == XLA_FFI_DataType_S8 ? 8 : 4;
  if (x->rank != 2 || y->rank != 2 || x->dtype != XLA_FFI_DataType_F32 || y->dtype != XLA_FFI_DataType_F32 ||
      (bits == 4 && codes->dtype != XLA_FFI_DataType_U8) || scales->dtype != XLA_FFI_DataType_F16 ||
      (offsets != NULL && offsets->dtype != XLA_FFI_DataType_F16))
    return failed(frame->api, "packed rows: float32, codes of 8 or 4 bits, scales and offsets of float16");
  int64_t rows = x->dims[0], inner = x->dims[1], outer = y->dims[1], each = inner * outer, count = size_of(scales);
  int64_t block = count ? each / count : 0, least = bits == 8 ? 16 : 32;
  if (y->dims[0] != rows || size_of(codes) * 8 != each * bits || (offsets != NULL && size_of(offsets) != count) ||
      (each && (block * count != each || block < 1 || inner % block || block % least)))
    return failed(frame->api, "packed rows: shapes that do not belong together");
  Product p = {.bits = bits, .batch = 1, .rows = rows, .inner = inner, .outer = outer, .block = block,
               .x = x->data, .matrix = codes->data, .scales = scales->data,
               .offsets = offsets == NULL ? NULL : offsets->data, .y = y->data};
  if (rows && each) share_out(frame, &p);
  return NULL;
}
