/* Moves slots of a place to and from a file, in the order that XLA sees: each call takes a token and returns the next.

   `spill_store(token, file, unit, row, value) -> token` writes `unit` bytes at row `row` of a file; nothing if the row is
   negative. `spill_fetch(token, file, unit, ahead, rows) -> (values, token)` reads the rows in `rows`, each of `unit`
   bytes; what was never written reads as zeros. All rows are announced to the system before the first is read, and so
   is the one that lies `ahead` of the last, which the next call is expected to read. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "ffi.h"

static void *argument(XLA_FFI_CallFrame *frame, int number) {
  return ((XLA_FFI_Buffer *)frame->args.args[number])->data;
}

static int32_t number(XLA_FFI_CallFrame *frame, int at) { return *(const int32_t *)argument(frame, at); }

XLA_FFI_Error *spill_store(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  int32_t token = number(frame, 0), file = number(frame, 1), unit = number(frame, 2), row = number(frame, 3);
  const char *from = argument(frame, 4);
  int64_t at = (int64_t)row * unit, left = row < 0 ? 0 : unit;
  while (left > 0) {
    ssize_t done = pwrite(file, from, (size_t)left, at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return failed(frame->api, done < 0 ? strerror(errno) : "the file ended");
    from += done, at += done, left -= done;
  }
  *(int32_t *)((XLA_FFI_Buffer *)frame->rets.rets[0])->data = token + 1;
  return NULL;
}

XLA_FFI_Error *spill_fetch(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  int32_t token = number(frame, 0), file = number(frame, 1), unit = number(frame, 2), ahead = number(frame, 3);
  XLA_FFI_Buffer *chosen = frame->args.args[4];
  const int32_t *rows = chosen->data;
  int64_t count = 1;
  for (int64_t axis = 0; axis < chosen->rank; axis++) count *= chosen->dims[axis];
  char *into = ((XLA_FFI_Buffer *)frame->rets.rets[0])->data;
  if (count > 1)
    for (int64_t n = 0; n < count; n++) posix_fadvise(file, (int64_t)rows[n] * unit, unit, POSIX_FADV_WILLNEED);
  for (int64_t n = 0; n < count; n++) {
    int64_t at = (int64_t)rows[n] * unit, left = unit;
    while (left > 0) {
      ssize_t done = pread(file, into, (size_t)left, at);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return failed(frame->api, done < 0 ? strerror(errno) : "the file ended");
      if (done == 0) memset(into, 0, (size_t)left), done = left;
      into += done, at += done, left -= done;
    }
  }
  if (ahead != 0 && count > 0 && rows[count - 1] + ahead >= 0)
    posix_fadvise(file, ((int64_t)rows[count - 1] + ahead) * unit, unit, POSIX_FADV_WILLNEED);
  *(int32_t *)((XLA_FFI_Buffer *)frame->rets.rets[1])->data = token + 1;
  return NULL;
}
