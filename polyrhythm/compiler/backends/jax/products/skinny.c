/* Products of a few rows with matrices, at the speed at which memory delivers the matrices.

   rows (batch, rows, inner) times matrix (batch, outer, inner), `skinny_across`, or (batch, inner, outer),
   `skinny_along`; without its batch if all share one; of whatever shape the elements have, since a reshape before the
   call can make XLA copy a buffer. lengths, int32, one for each of the batch or one for all: how much of the outer axis
   counts (across; the rest of the result is zero), or of the inner one (along). The result is (batch, rows, outer) in
   float32. Rows are float32, a matrix is float32 or bfloat16, and sums are float32.

   `window_across` and `window_along` have lanes, each with a window of its own of the matrices: rows (lanes * batch, rows,
   inner), matrices (batch, steps, ...), and starts, int32, one for each lane: from which step on its window lies, as long
   as the outer axis of the result (across) or the inner one (along). */

#include "shared.h"

enum { INNER = 128 };

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

/* Where the matrix of one of the batch begins. */
static int64_t matrix_of(const Product *p, int64_t b) {
  if (p->starts == NULL) return b * p->matrix_stride;
  int64_t start = p->starts[b / p->each], last = p->steps - (p->is_along ? p->inner : p->outer);
  start = start < 0 ? 0 : smaller(start, last);
  return b % p->each * p->matrix_stride + start * (p->is_along ? p->outer : p->inner);
}

INLINE void tile_across(const int is_half, const Product *p, int64_t b, int64_t first, int64_t end) {
  int64_t matrix = matrix_of(p, b), block = COLUMNS * p->inner;
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

INLINE void tile_along(const int is_half, const Product *p, int64_t b, int64_t first, int64_t end, int64_t length) {
  int64_t matrix = matrix_of(p, b);
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

static void tile(const Product *p, int64_t number) {
  int64_t b = number / p->tiles_each, first = number % p->tiles_each * p->width, end = smaller(first + p->width, p->outer);
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
  Product p = {.tile = tile, .again = 1, .is_along = is_along, .is_half = is_half, .has_length_each = lengths->dims[0] != 1,
               .bits = is_half ? 16 : 32,
               .batch = batch, .rows = x->dims[1], .inner = inner, .outer = outer,
               .matrix_stride = elements == each ? 0 : each,
               .x = x->data, .matrix = matrix->data, .lengths = lengths->data, .y = y->data};
  if (batch && p.rows && outer) share_out(frame, &p);
  return NULL;
}

static XLA_FFI_Error *window(const XLA_FFI_CallFrame *frame, int is_along) {
  if (is_question(frame)) return NULL;
  if (frame->args.size != 3 || frame->rets.size != 1) return failed(frame->api, "windows: three operands, one result");
  const XLA_FFI_Buffer *x = frame->args.args[0], *matrix = frame->args.args[1], *starts = frame->args.args[2];
  const XLA_FFI_Buffer *y = frame->rets.rets[0];
  if (x->rank != 3 || y->rank != 3 || matrix->rank != 3 || starts->rank != 1)
    return failed(frame->api, "windows: arrays of three axes, and one of starts");
  int is_half = matrix->dtype == XLA_FFI_DataType_BF16;
  if (x->dtype != XLA_FFI_DataType_F32 || y->dtype != XLA_FFI_DataType_F32 ||
      (!is_half && matrix->dtype != XLA_FFI_DataType_F32) || starts->dtype != XLA_FFI_DataType_S32)
    return failed(frame->api, "windows: float32, or a matrix of bfloat16, and starts of int32");
  int64_t batch = x->dims[0], inner = x->dims[2], outer = y->dims[2], each = matrix->dims[0], steps = matrix->dims[1];
  if (batch != each * starts->dims[0] || y->dims[0] != batch || y->dims[1] != x->dims[1] ||
      matrix->dims[2] != (is_along ? outer : inner) || steps < (is_along ? inner : outer))
    return failed(frame->api, "windows: shapes that do not belong together");
  Product p = {.tile = tile, .again = 1, .is_along = is_along, .is_half = is_half, .bits = is_half ? 16 : 32,
               .batch = batch, .rows = x->dims[1], .inner = inner, .outer = outer,
               .matrix_stride = steps * matrix->dims[2], .starts = starts->data, .each = each, .steps = steps,
               .x = x->data, .matrix = matrix->data, .y = y->data};
  if (batch && p.rows && outer) share_out(frame, &p);
  return NULL;
}

XLA_FFI_Error *skinny_across(XLA_FFI_CallFrame *frame) { return product(frame, 0); }
XLA_FFI_Error *skinny_along(XLA_FFI_CallFrame *frame) { return product(frame, 1); }
XLA_FFI_Error *window_across(XLA_FFI_CallFrame *frame) { return window(frame, 0); }
XLA_FFI_Error *window_along(XLA_FFI_CallFrame *frame) { return window(frame, 1); }
