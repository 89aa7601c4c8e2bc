/* The engine of engine.py for runs without values, in C: the same processes, channels, clocks and order of events.

   A value is a number: compiled.py gives equal tiles, selectors and tuples the same one, and a table says what they cost
   to read. What an operator makes of values is asked once for each combination and remembered. An operator is a function
   that returns when it has to wait and goes on at its `line` when it is woken. Whatever a user did wrong stops the run:
   Python then repeats it, and says what is wrong. Keep both engines alike: tests compare clocks, waits and logs. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
enum { EMPTY = -1, KEY = 8, MOST_INPUTS = 4 };
enum { ASK_MAP, ASK_FOLD, ASK_STATE, ASK_TUPLE, ASK_MOVED, ASK_TARGETS, ASK_EXPAND, ASK_FETCH };

typedef struct { i64 value, level, time; } Token;
typedef struct { Token *at; i64 head, count, size; } Tokens;
typedef struct { i64 *at; i64 head, count, size; } Numbers;

typedef struct {
    Tokens items;
    Numbers freed, log;
    i64 credit, latency, closed, stalled, starved, reader, writer;
    int gone, reader_waits, writer_waits, unbounded, logged;
} Channel;

typedef struct Engine Engine;
typedef struct Process Process;
typedef void (*Operator)(Engine *, Process *);

struct Process {
    Operator run;
    i64 number, node, line, clock, busy, flops, started, n_in, n_out;
    int finished, queued, decided;
    i64 *in, *out, *given;
    /* Variables of operators, which outlive a wait. */
    i64 value, level, at, input, state, open, vanished, sent, rides, first, count, below, close, any, bare, closes, loaded,
        index, slab, turn, final, of, arrived, groups, chosen, outer, ended, val[MOST_INPUTS];
    Tokens kept;
};

typedef struct { i64 load, address, first, count; } Value;
typedef struct { double time; i64 kind, order, process, bytes, latency; } Event;
typedef struct { Event *at; i64 count, size; } Heap;
typedef struct { i64 key[KEY], found[3]; int used; } Entry;
typedef int (*Ask)(i64 kind, i64 process, const i64 *arguments, i64 *found);

struct Engine {
    Channel *channels; i64 n_channels, size_channels;
    Process *processes; i64 n_processes, size_processes;
    Value *values; i64 n_values, size_values;
    Token *pool; i64 n_pool, size_pool;
    Entry *memo; i64 n_memo, size_memo;
    Numbers ready;
    Heap events, transfers;
    i64 sequence, moved, element_cycles, switch_cycles, reconfigure_cycles;
    double bandwidth, cap, now, virtual, rate, next;
    Ask ask;
    int failed;
};

/* ---- memory ------------------------------------------------------------------------------------------------------- */

#define GROW(array, count, size)                                                                                         \
    if ((count) == (size)) {                                                                                             \
        (size) = (size) ? 2 * (size) : 16;                                                                               \
        (array) = realloc((array), (size) * sizeof *(array));                                                            \
    }

/* Rings of a power of two. */
#define PUSH(ring, element)                                                                                              \
    do {                                                                                                                 \
        if ((ring).count == (ring).size) {                                                                               \
            i64 old_ = (ring).size, new_ = old_ ? 2 * old_ : 4;                                                          \
            (ring).at = realloc((ring).at, new_ * sizeof *(ring).at);                                                    \
            if ((ring).head) memcpy((ring).at + old_, (ring).at, (ring).head * sizeof *(ring).at);                       \
            (ring).size = new_;                                                                                          \
        }                                                                                                                \
        (ring).at[((ring).head + (ring).count++) & ((ring).size - 1)] = (element);                                       \
    } while (0)
#define FIRST(ring) ((ring).at[(ring).head])
#define DROP(ring) ((ring).head = ((ring).head + 1) & ((ring).size - 1), (ring).count--)

static int earlier(const Event *a, const Event *b) {
    if (a->time != b->time) return a->time < b->time;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->order < b->order;
}

static void heap_push(Heap *heap, Event event) {
    GROW(heap->at, heap->count, heap->size);
    i64 at = heap->count++;
    for (; at && earlier(&event, &heap->at[(at - 1) / 2]); at = (at - 1) / 2) heap->at[at] = heap->at[(at - 1) / 2];
    heap->at[at] = event;
}

static Event heap_pop(Heap *heap) {
    Event top = heap->at[0], last = heap->at[--heap->count];
    i64 at = 0;
    for (i64 child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && earlier(&heap->at[child + 1], &heap->at[child])) child++;
        if (!earlier(&heap->at[child], &last)) break;
        heap->at[at] = heap->at[child];
    }
    heap->at[at] = last;
    return top;
}

/* ---- off-chip memory: FluidMemory of memory.py, whose transfers here all have one cap -------------------------------- */

static void memory_advance(Engine *e, double time) {
    double elapsed = time - e->now;
    if (elapsed > 0) {
        if (e->transfers.count) e->virtual += e->rate * elapsed;
        e->now = time;
    }
}

static void memory_share(Engine *e) {
    e->next = -1;
    if (!e->transfers.count) return;
    e->rate = fmin(e->cap, e->bandwidth / (double)e->transfers.count);
    e->next = e->now + fmax(0.0, e->transfers.at[0].time - e->virtual) / e->rate;
}

static void memory_start(Engine *e, double time, i64 bytes, i64 process, i64 latency) {
    memory_advance(e, time);
    e->moved += bytes;
    heap_push(&e->transfers, (Event){e->virtual + (double)bytes, 0, ++e->sequence, process, bytes, latency});
    memory_share(e);
}

/* ---- processes and channels ------------------------------------------------------------------------------------------ */

static void wake(Engine *e, i64 number) {
    if (number < 0) return;
    Process *p = &e->processes[number];
    if (!p->queued && !p->finished) {
        p->queued = 1;
        PUSH(e->ready, number);
    }
}

static void reach(Process *p, i64 time) {
    if (time > p->clock) p->clock = time;
}

static Token look(Process *p, Channel *c) {
    Token token = FIRST(c->items);
    if (token.time > p->clock) {
        c->starved += token.time - p->clock;
        p->clock = token.time;
    }
    return token;
}

static Token take(Engine *e, Process *p, Channel *c) {
    Token token = look(p, c);
    DROP(c->items);
    if (!c->unbounded) PUSH(c->freed, p->clock);
    if (c->writer_waits) {
        c->writer_waits = 0;
        wake(e, c->writer);
    }
    return token;
}

static void stall(Process *p, Channel *c, i64 until) {
    if (until > p->clock) {
        c->stalled += until - p->clock;
        p->clock = until;
    }
}

static void put(Engine *e, Process *p, Channel *c, i64 value, i64 level) {
    if (c->credit) c->credit--;
    else if (c->freed.count) {
        stall(p, c, FIRST(c->freed));
        DROP(c->freed);
    } else return; /* the reader has finished */
    PUSH(c->items, ((Token){value, level, p->clock + c->latency}));
    if (c->logged) PUSH(c->log, value == EMPTY ? ~level : level);
    if (c->reader_waits) {
        c->reader_waits = 0;
        wake(e, c->reader);
    }
}

static void work(Process *p, i64 cycles) {
    p->clock += cycles;
    p->busy += cycles;
}

static void finish(Engine *e, Process *p) {
    p->finished = 1;
    for (i64 i = 0; i < p->n_out; i++) {
        Channel *c = &e->channels[p->out[i]];
        c->closed = p->clock + c->latency;
        if (c->reader_waits) {
            c->reader_waits = 0;
            wake(e, c->reader);
        }
    }
    for (i64 i = 0; i < p->n_in; i++) {
        Channel *c = &e->channels[p->in[i]];
        c->gone = 1;
        if (c->writer_waits) {
            c->writer_waits = 0;
            wake(e, c->writer);
        }
    }
}

static i64 hashed(const i64 *key) {
    uint64_t hash = 0;
    for (int k = 0; k < KEY; k++) hash = (hash ^ (uint64_t)key[k]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    return (i64)(hash >> 1);
}

/* What Python makes of values: asked once. NULL when it cannot say. */
static const i64 *ask(Engine *e, Process *p, i64 kind, i64 owner, const i64 *arguments, i64 count) {
    i64 key[KEY] = {kind, owner};
    memcpy(key + 2, arguments, count * sizeof(i64));
    if (2 * e->n_memo >= e->size_memo) {
        i64 size = e->size_memo ? 2 * e->size_memo : 1024;
        Entry *larger = calloc(size, sizeof(Entry));
        for (i64 i = 0; i < e->size_memo; i++)
            if (e->memo[i].used) {
                i64 at = hashed(e->memo[i].key) & (size - 1);
                while (larger[at].used) at = (at + 1) & (size - 1);
                larger[at] = e->memo[i];
            }
        free(e->memo);
        e->memo = larger;
        e->size_memo = size;
    }
    i64 at = hashed(key) & (e->size_memo - 1);
    while (e->memo[at].used) {
        if (!memcmp(e->memo[at].key, key, sizeof key)) return e->memo[at].found;
        at = (at + 1) & (e->size_memo - 1);
    }
    i64 found[3] = {0};
    if (!e->ask(kind, p->number, key + 2, found)) {
        e->failed = 1;
        return NULL;
    }
    Entry *entry = &e->memo[at];
    memcpy(entry->key, key, sizeof key);
    memcpy(entry->found, found, sizeof found);
    entry->used = 1;
    e->n_memo++;
    return entry->found;
}

/* ---- how an operator waits --------------------------------------------------------------------------------------------- */

#define BEGIN switch (p->line) { case 0:;
#define END } finish(e, p)
#define IN(i) (&e->channels[p->in[i]])
#define OUT(i) (&e->channels[p->out[i]])
#define WRONG do { e->failed = 1; return; } while (0)
#define WHILE_SLEEPING(condition, flag) while (condition) { flag; p->line = __LINE__; return; case __LINE__:; }
#define AWAIT(c) WHILE_SLEEPING(!(c)->items.count && (c)->closed < 0, (c)->reader_waits = 1)
#define ENDED(c) (!(c)->items.count && (reach(p, (c)->closed), 1))
#define SEND(c, what, closing)                                                                                           \
    do {                                                                                                                 \
        WHILE_SLEEPING(!(c)->credit && !(c)->freed.count && !(c)->gone, (c)->writer_waits = 1)                           \
        put(e, p, c, what, closing);                                                                                     \
    } while (0)
#define TRANSFER(bytes, latency)                                                                                         \
    p->started = p->clock, p->decided = 0;                                                                               \
    heap_push(&e->events, (Event){(double)p->clock, 0, ++e->sequence, p->number, bytes, latency});                       \
    WHILE_SLEEPING(!p->decided, ) p->busy += p->clock - p->started
#define TAKE(c) do { Token t_ = take(e, p, c); p->value = t_.value, p->level = t_.level; } while (0)
/* The next token of the one input, or the end of the operator. */
#define NEXT AWAIT(IN(0)) if (ENDED(IN(0))) break; TAKE(IN(0))

/* Bare stops before the next element are skipped; the element stays, or goes too. */
#define PEEK_ELEMENT(c, into)                                                                                            \
    for (;;) {                                                                                                           \
        AWAIT(c)                                                                                                         \
        if (ENDED(c)) WRONG;                                                                                             \
        if (((into) = look(p, c).value) != EMPTY) break;                                                                 \
        take(e, p, c);                                                                                                   \
    }
#define SKIP_ELEMENT(c)                                                                                                  \
    for (;;) {                                                                                                           \
        AWAIT(c)                                                                                                         \
        if (ENDED(c) || take(e, p, c).value != EMPTY) break;                                                             \
    }

#include "operators.h"

static const struct { const char *label; Operator run; } OPERATORS[] = {
    {"source", op_source}, {"drain", op_drain}, {"broadcast", op_broadcast}, {"map", op_together}, {"zip", op_together},
    {"accum", op_together}, {"scan", op_together}, {"flat_map", op_flat_map}, {"flatten", op_flatten},
    {"reshape", op_reshape}, {"promote", op_promote}, {"expand", op_expand}, {"repeat", op_repeat},
    {"linear_load", op_linear_load}, {"linear_store", op_linear_store}, {"random_load", op_random_load},
    {"random_store", op_random_store}, {"bufferize", op_bufferize}, {"streamify", op_streamify}, {"window", op_window},
    {"partition", op_partition}, {"reassemble", op_reassemble}, {"eager_merge", op_eager_merge},
    {"parallelize", op_parallelize},
};

/* ---- what compiled.py calls ------------------------------------------------------------------------------------------ */

Engine *engine_new(double bandwidth, double cap, i64 element_cycles, i64 switch_cycles, i64 reconfigure_cycles, Ask ask_) {
    Engine *e = calloc(1, sizeof(Engine));
    e->bandwidth = bandwidth, e->cap = cap, e->next = -1, e->ask = ask_;
    e->element_cycles = element_cycles, e->switch_cycles = switch_cycles, e->reconfigure_cycles = reconfigure_cycles;
    return e;
}

void engine_free(Engine *e) {
    for (i64 i = 0; i < e->n_channels; i++)
        free(e->channels[i].items.at), free(e->channels[i].freed.at), free(e->channels[i].log.at);
    for (i64 i = 0; i < e->n_processes; i++)
        free(e->processes[i].in), free(e->processes[i].out), free(e->processes[i].given), free(e->processes[i].kept.at);
    free(e->channels), free(e->processes), free(e->values), free(e->pool), free(e->memo);
    free(e->ready.at), free(e->events.at), free(e->transfers.at), free(e);
}

i64 add_tokens(Engine *e, i64 count, const i64 *values, const i64 *levels) {
    i64 first = e->n_pool;
    for (i64 i = 0; i < count; i++) {
        GROW(e->pool, e->n_pool, e->size_pool)
        e->pool[e->n_pool++] = (Token){values[i], levels[i], 0};
    }
    return first;
}

i64 add_value(Engine *e, i64 load, i64 address, i64 first, i64 count) {
    GROW(e->values, e->n_values, e->size_values)
    e->values[e->n_values] = (Value){load, address, first, count};
    return e->n_values++;
}

i64 add_channel(Engine *e, i64 credit, i64 latency, i64 logged, i64 unbounded) {
    GROW(e->channels, e->n_channels, e->size_channels)
    e->channels[e->n_channels] = (Channel){.credit = credit, .latency = latency, .closed = -1, .reader = -1, .writer = -1};
    e->channels[e->n_channels].logged = (int)logged, e->channels[e->n_channels].unbounded = (int)unbounded;
    return e->n_channels++;
}

void prime(Engine *e, i64 channel, i64 value, i64 level) {
    PUSH(e->channels[channel].items, ((Token){value, level, 0}));
}

static i64 *copied(const i64 *numbers, i64 count) {
    i64 *copy = malloc((count + 1) * sizeof(i64));
    if (count) memcpy(copy, numbers, count * sizeof(i64));
    return copy;
}

/* 0 for an operator that is not known here. */
int add_process(Engine *e, const char *label, i64 node, i64 n_in, const i64 *in, i64 n_out,
                const i64 *out, i64 n_given, const i64 *given) {
    size_t at = 0, count = sizeof OPERATORS / sizeof *OPERATORS;
    while (at < count && strcmp(OPERATORS[at].label, label)) at++;
    if (at == count) return 0;
    GROW(e->processes, e->n_processes, e->size_processes)
    Process *p = &e->processes[e->n_processes];
    *p = (Process){.run = OPERATORS[at].run, .number = e->n_processes, .node = node, .n_in = n_in, .n_out = n_out};
    p->in = copied(in, n_in), p->out = copied(out, n_out), p->given = copied(given, n_given);
    for (i64 i = 0; i < n_in; i++) e->channels[in[i]].reader = e->n_processes;
    for (i64 i = 0; i < n_out; i++) e->channels[out[i]].writer = e->n_processes;
    e->n_processes++;
    return 1;
}

static void resume(Engine *e, i64 number, i64 clock) {
    reach(&e->processes[number], clock);
    e->processes[number].decided = 1;
    wake(e, number);
}

static int by_order(const void *a, const void *b) {
    i64 x = ((const Event *)a)->order, y = ((const Event *)b)->order;
    return (x > y) - (x < y);
}

/* 1 when every process has finished, 0 when something is wrong. */
int engine_run(Engine *e) {
    Event *done = NULL;
    i64 size = 0;
    for (i64 i = 0; i < e->n_processes; i++) wake(e, i);
    for (;;) {
        while (e->ready.count && !e->failed) {
            Process *p = &e->processes[FIRST(e->ready)];
            DROP(e->ready);
            p->queued = 0;
            p->run(e, p);
        }
        if (e->failed) break;
        if (e->next >= 0 && (!e->events.count || e->next <= e->events.at[0].time)) {
            i64 arrival = (i64)ceil(e->next - 1e-6), count = 0;
            memory_advance(e, e->next);
            while (e->transfers.count && e->transfers.at[0].time <= e->virtual + 1e-6) {
                GROW(done, count, size)
                done[count++] = heap_pop(&e->transfers);
            }
            if (!e->transfers.count) e->virtual = 0.0;
            memory_share(e);
            qsort(done, count, sizeof(Event), by_order);
            for (i64 i = 0; i < count; i++) resume(e, done[i].process, arrival + done[i].latency);
        } else if (e->events.count) {
            Event event = heap_pop(&e->events);
            if (event.kind == 0) memory_start(e, event.time, event.bytes, event.process, event.latency);
            else resume(e, event.process, e->processes[event.process].clock);
        } else break;
    }
    free(done);
    for (i64 i = 0; i < e->n_processes; i++) e->failed |= !e->processes[i].finished;
    return !e->failed;
}

i64 bytes_moved(Engine *e) { return e->moved; }

static i64 copy_tokens(const Token *at, i64 head, i64 count, i64 mask, i64 *found) {
    for (i64 i = 0; found && i < count; i++) {
        Token token = at[(head + i) & mask];
        found[2 * i] = token.value, found[2 * i + 1] = token.level;
    }
    return 2 * count;
}

/* Numbers about a process, a channel or a buffer, and how many there are. */
i64 read_numbers(Engine *e, i64 what, i64 number, i64 *found) {
    enum { PROCESS, CHANNEL, LOG, ITEMS, KEPT };
    Process *p = &e->processes[number];
    Channel *c = &e->channels[number];
    switch (what) {
    case PROCESS:
        if (found) found[0] = p->clock, found[1] = p->busy, found[2] = p->flops;
        return 3;
    case CHANNEL:
        if (found) found[0] = c->stalled, found[1] = c->starved;
        return 2;
    case LOG:
        for (i64 i = 0; found && i < c->log.count; i++) found[i] = c->log.at[(c->log.head + i) & (c->log.size - 1)];
        return c->log.count;
    case ITEMS: return copy_tokens(c->items.at, c->items.head, c->items.count, c->items.size - 1, found);
    case KEPT: return copy_tokens(p->kept.at, p->kept.head, p->kept.count, p->kept.size - 1, found);
    default: return copy_tokens(e->pool + e->values[number].first, 0, e->values[number].count, -1, found);
    }
}
