/* Lets a loop inside of XLA report how far it is, and end early.

   `watch` gets, as int32 scalars, a slot, the number of a loop, the next iteration and the one after the last. It notes
   them in the slot and returns up to which iteration the loop may run before it asks again: at first one, then as many as
   take about a twentieth of a second. A slot that is told to stop returns the next iteration itself. Slot 0 is nobody's:
   its loops run to their end. */

#include <time.h>

#include "ffi.h"

enum { SLOTS = 64, MOST = 1 << 30 };
static const double OFTEN = 0.02, SELDOM = 0.1, AIM = 0.05;

typedef struct {
  volatile int32_t stop, loop, next, end;
  int32_t step, asked, from;
  double last;
} Slot;

static Slot slots[SLOTS];

void watch_reset(int32_t slot) { memset((void *)&slots[slot], 0, sizeof(Slot)); }
void watch_stop(int32_t slot) { slots[slot].stop = 1; }

/* The loop, the next iteration and the end, as they were noted last. */
void watch_read(int32_t slot, int32_t *into) {
  into[0] = slots[slot].loop;
  into[1] = slots[slot].next;
  into[2] = slots[slot].end;
}

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static int32_t upto(int32_t number, int32_t loop, int32_t next, int32_t end) {
  if (number <= 0 || number >= SLOTS || next >= end) return end;
  Slot *slot = &slots[number];
  double at = now(), since = at - slot->last;
  if (slot->stop) return next;
  if (slot->asked != loop || next < slot->from || slot->step == 0)
    slot->step = 1;
  else if (since < OFTEN)
    slot->step = slot->step < MOST / 8 ? slot->step * 8 : MOST;
  else if (since > SELDOM)
    slot->step = (int32_t)(slot->step * AIM / since) + 1;
  slot->last = at;
  slot->asked = loop;
  slot->from = next;
  if (loop >= 0) { /* a loop inside of another is not shown */
    slot->loop = loop;
    slot->next = next;
    slot->end = end;
  }
  return end - next > slot->step ? next + slot->step : end;
}

XLA_FFI_Error *watch(XLA_FFI_CallFrame *frame) {
  if (is_question(frame)) return NULL;
  int32_t given[4];
  for (int i = 0; i < 4; i++) given[i] = *(const int32_t *)((XLA_FFI_Buffer *)frame->args.args[i])->data;
  *(int32_t *)((XLA_FFI_Buffer *)frame->rets.rets[0])->data = upto(given[0], given[1], given[2], given[3]);
  return NULL;
}
