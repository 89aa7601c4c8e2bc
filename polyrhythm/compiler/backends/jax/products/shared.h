/* What products of rows with a matrix share: registers, sums over the rows of a matrix, and the work of several threads.

   The matrix is read from memory once, for all rows; the next rows of it are asked for in time. Tiles of the matrix are
   shared out among the threads of XLA's pool: whoever is free takes the next one, so the caller waits for tiles that
   others have begun, and for nothing else that they have to do. A sum is made by one thread in one order: results
   depend neither on the number of threads nor on the lengths. */

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ffi.h"

/* As many rows and columns at once as there are registers for their sums. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 4, COLUMNS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 2, COLUMNS = 4 };
#else
enum { LANES = 4, ROWS = 2, COLUMNS = 4 };
#endif
enum { AHEAD = 4096 };

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

typedef struct Product {
  void (*tile)(const struct Product *, int64_t); /* makes one tile of the result */
  int is_along, is_half, has_length_each;
  int bits; /* of an element of the matrix */
  int64_t batch, rows, inner, outer;
  int64_t matrix_stride; /* from one matrix of the batch to the next; 0 if all share one */
  const int32_t *starts; /* of the windows of each lane, if there are any, in `each` matrices of so many steps */
  int64_t each, steps;
  const float *x;
  const void *matrix;
  const int32_t *lengths;
  float *y;
  int64_t again; /* how often a byte of the matrix is worked with */
  const struct Codes *codes; /* what is known of a matrix of codes */
  int64_t width, tiles_each, tiles; /* columns in a tile, and how many there are */
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

/* A call of a kernel above with as many rows as there are, all else known to the compiler. */
#define FOR_ROWS(count, kernel, columns, is_half, ...)                   \
  switch (smaller(count, ROWS)) {                                        \
    case 1: kernel(1, columns, is_half, __VA_ARGS__); break;             \
    case 2: kernel(2, columns, is_half, __VA_ARGS__); break;             \
    case 3: kernel(smaller(3, ROWS), columns, is_half, __VA_ARGS__); break; \
    default: kernel(ROWS, columns, is_half, __VA_ARGS__);                \
  }

static int64_t length_of(const Product *p, int64_t b) {
  int64_t whole = p->is_along ? p->inner : p->outer;
  if (p->lengths == NULL) return whole;
  int64_t given = p->lengths[p->has_length_each ? b : 0];
  return given < 0 ? 0 : smaller(given, whole);
}

static void work(Job *job) {
  for (;;) {
    int64_t number = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (number >= job->product.tiles) return;
    job->product.tile(&job->product, number);
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

/* Whether a call of XLA's went wrong; what it says of it is let go. */
static int is_error(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  if (error == NULL) return 0;
  XLA_FFI_Error_Destroy_Args gone = {sizeof gone, NULL, error};
  api->XLA_FFI_Error_Destroy(&gone);
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
  if (bytes * p->again >= ALONE) {
    XLA_FFI_ThreadPool_NumThreads_Args count = {sizeof count, NULL, frame->ctx, &threads};
    if (is_error(frame->api, frame->api->XLA_FFI_ThreadPool_NumThreads(&count))) threads = 1;
  }
  int64_t wish = bytes / (4 * threads), step = p->is_along ? COLUMNS * LANES : COLUMNS;
  wish = wish < LEAST_TILE ? LEAST_TILE : smaller(wish, MOST_TILE);
  int64_t row = (p->is_along ? lengths / p->batch : p->inner) * p->bits / 8, steps = wish / (row * step + 1);
  p->width = threads == 1 ? p->outer : step * (steps < 1 ? 1 : steps);
  p->tiles_each = (p->outer + p->width - 1) / p->width;
  p->tiles = p->batch * p->tiles_each;
  int64_t helpers = smaller(threads, p->tiles) - 1;
  Job *job = helpers < 1 ? NULL : calloc(1, sizeof *job);
  if (job == NULL) {
    for (int64_t number = 0; number < p->tiles; number++) p->tile(p, number);
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
