/* Rows of a table at given places, copied as they are.

   XLA's processor code converts a whole table of 16-bit floats to float32 before it takes rows of it, at every call: a
   gigabyte for a vocabulary of 128,256 and vectors of 2,048. places are int32 within the table, whose first axis they
   count along. */

#include "ffi.h"

XLA_FFI_Error *rows_taken(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  if (frame->args.size != 2 || frame->rets.size != 1) return failed(frame->api, "rows: two operands, one result");
  const XLA_FFI_Buffer *table = frame->args.args[0], *places = frame->args.args[1], *taken = frame->rets.rets[0];
  if (table->rank < 1 || places->rank != 1 || taken->rank != table->rank || taken->dtype != table->dtype ||
      places->dtype != XLA_FFI_DataType_S32 || taken->dims[0] != places->dims[0] ||
      (table->dtype != XLA_FFI_DataType_BF16 && table->dtype != XLA_FFI_DataType_F16))
    return failed(frame->api, "rows: a table of 16-bit floats, int32 places, and as many rows");
  int64_t size = 2;
  for (int64_t axis = 1; axis < table->rank; axis++) {
    if (taken->dims[axis] != table->dims[axis]) return failed(frame->api, "rows: rows of another shape");
    size *= table->dims[axis];
  }
  const int32_t *at = places->data;
  for (int64_t n = 0; n < places->dims[0]; n++) {
    if (at[n] < 0 || at[n] >= table->dims[0]) return failed(frame->api, "rows: a place outside the table");
    memcpy((char *)taken->data + n * size, (const char *)table->data + at[n] * size, size);
  }
  return NULL;
}
