/* Operators for engine.c: the `run` of each, as a function that returns where it waits and goes on there. */

static void op_source(Engine *e, Process *p) { /* first, count */
    BEGIN
    for (p->at = 0; p->at < p->given[1]; p->at++)
        SEND(OUT(0), e->pool[p->given[0] + p->at].value, e->pool[p->given[0] + p->at].level);
    END;
}

static void op_drain(Engine *e, Process *p) {
    BEGIN
    for (;;) {
        NEXT;
        PUSH(p->kept, ((Token){p->value, p->level, 0}));
    }
    END;
}

static void op_broadcast(Engine *e, Process *p) {
    BEGIN
    for (;;) {
        NEXT;
        for (p->at = 0; p->at < p->n_out; p->at++) {
            WHILE_SLEEPING(!OUT(p->at)->credit && !OUT(p->at)->gone && !OUT(p->at)->freed.count, OUT(p->at)->writer_waits = 1)
            if (!OUT(p->at)->credit && !OUT(p->at)->gone) stall(p, OUT(p->at), FIRST(OUT(p->at)->freed));
        }
        for (p->at = 0; p->at < p->n_out; p->at++) SEND(OUT(p->at), p->value, p->level);
    }
    END;
}

/* Map, Accum, Scan and Zip advance several streams together. Given: what it is, mask of endless inputs, rank. */
enum { IS_MAP, IS_ZIP, IS_ACCUM, IS_SCAN };
static void op_together(Engine *e, Process *p) {
    i64 *levels = p->given + 4; /* room for those of the inputs */
    BEGIN
    p->state = EMPTY;
    for (;;) {
        AWAIT(IN(0))
        if (ENDED(IN(0))) {
            for (p->input = 1; p->input < p->n_in; p->input++)
                if (!(p->given[1] >> p->input & 1)) {
                    AWAIT(IN(p->input))
                    if (!ENDED(IN(p->input))) WRONG;
                }
            break;
        }
        p->level = 0;
        for (p->input = 0; p->input < p->n_in; p->input++) {
            AWAIT(IN(p->input))
            if (ENDED(IN(p->input))) WRONG;
            Token t = take(e, p, IN(p->input));
            if ((t.value == EMPTY) != ((p->input ? p->val[0] : t.value) == EMPTY)) WRONG;
            p->val[p->input] = t.value, levels[p->input] = t.level;
            if (t.level > p->level) p->level = t.level;
        }
        for (p->input = 0; p->input < p->n_in; p->input++)
            while (levels[p->input] < p->level) {
                AWAIT(IN(p->input))
                if (ENDED(IN(p->input))) WRONG;
                Token t = take(e, p, IN(p->input));
                if (t.value != EMPTY || t.level > p->level) WRONG;
                levels[p->input] = t.level;
            }
        if (p->given[0] <= IS_ZIP) {
            p->value = EMPTY;
            if (p->val[0] != EMPTY) {
                const i64 *found = ask(e, p, p->given[0] == IS_MAP ? ASK_MAP : ASK_TUPLE, p->node, p->val, p->n_in);
                if (!found) return;
                p->value = found[0];
                work(p, found[1]);
                p->flops += found[2];
            }
            SEND(OUT(0), p->value, p->level);
            continue;
        }
        if (p->given[0] == IS_ACCUM && p->val[0] == EMPTY && !p->open && p->level > p->given[2]) {
            SEND(OUT(0), EMPTY, p->level - p->given[2]);
            continue;
        }
        if (p->val[0] != EMPTY) {
            i64 of[2 + MOST_INPUTS] = {p->state, p->given[0] == IS_SCAN || p->level >= p->given[2]};
            memcpy(of + 2, p->val, p->n_in * sizeof(i64));
            const i64 *found = ask(e, p, ASK_FOLD, p->node, of, 2 + p->n_in);
            if (!found) return;
            p->state = found[0];
            work(p, found[1]);
            p->flops += found[2];
        }
        p->open = 1;
        if (p->given[0] == IS_SCAN || p->level >= p->given[2]) {
            p->value = EMPTY;
            if (p->given[0] == IS_ACCUM || p->val[0] != EMPTY) {
                const i64 *found = ask(e, p, ASK_STATE, p->node, &p->state, 1);
                if (!found) return;
                p->value = found[0];
            }
            SEND(OUT(0), p->value, p->given[0] == IS_SCAN ? p->level : p->level - p->given[2]);
            if (p->level >= p->given[2]) p->state = EMPTY, p->open = 0;
        }
    }
    END;
}

static void op_flat_map(Engine *e, Process *p) { /* rank, cycles */
    BEGIN
    for (;;) {
        NEXT;
        p->rides = 0;
        if (p->value != EMPTY) {
            const i64 *found = ask(e, p, ASK_EXPAND, p->number, &p->value, 1);
            if (!found) return;
            p->first = found[0], p->count = found[1];
            p->vanished = 1, p->sent = p->sent || p->count;
            for (p->at = 0; p->at < p->count; p->at++) {
                p->rides = p->at == p->count - 1 && p->level > 0 && e->pool[p->first + p->at].value != EMPTY;
                work(p, p->given[1]);
                SEND(OUT(0), e->pool[p->first + p->at].value, p->rides ? p->level + p->given[0] : e->pool[p->first + p->at].level);
            }
        }
        if (p->level > 0 && !p->rides) {
            if (p->level > 1 && p->vanished && !p->sent) SEND(OUT(0), EMPTY, 1 + p->given[0]);
            SEND(OUT(0), EMPTY, p->level + p->given[0]);
        }
        if (p->level > 0) p->vanished = p->sent = 0;
    }
    END;
}

static void op_flatten(Engine *e, Process *p) { /* low, high */
    i64 low = p->given[0], high = p->given[1];
    BEGIN
    for (;;) {
        NEXT;
        if (p->level > high) {
            if (p->value == EMPTY && p->level - (high - low) > low + 1 && p->vanished && !p->sent)
                SEND(OUT(0), EMPTY, low + 1);
            SEND(OUT(0), p->value, p->level - (high - low));
            p->below = p->vanished = p->sent = 0;
        } else if (p->value != EMPTY || p->level <= low || p->below) {
            SEND(OUT(0), p->value, p->level < low ? p->level : low);
            p->below = p->level < low, p->sent = 1;
        } else p->vanished = 1;
    }
    END;
}

static void op_reshape_groups(Engine *e, Process *p) { /* chunk, rank */
    i64 chunk = p->given[0], rank = p->given[1];
    BEGIN
    for (;;) {
        NEXT;
        if (p->level < rank) {
            p->open = 1;
            SEND(OUT(0), p->value, p->level);
            continue;
        }
        p->count += p->value != EMPTY || p->open || p->level == rank;
        if (p->value == EMPTY && !p->open && p->level == rank) {
            SEND(OUT(0), EMPTY, rank);
            if (p->count == chunk) SEND(OUT(0), EMPTY, rank + 1);
        } else if (p->level == rank) {
            SEND(OUT(0), p->value, rank + (p->count == chunk));
        } else {
            if (p->count % chunk) WRONG;
            SEND(OUT(0), p->value, p->level + 1);
        }
        p->open = 0;
        if (p->count == chunk) p->count = 0;
    }
    END;
}

static void op_reshape(Engine *e, Process *p) { /* chunk, rank, padding or EMPTY */
    i64 chunk = p->given[0];
    if (p->given[1]) {
        op_reshape_groups(e, p);
        return;
    }
    BEGIN
    for (;;) {
        AWAIT(IN(0))
        if (ENDED(IN(0))) {
            if (!p->count) break;
            p->close = 1, p->level = EMPTY;
        } else {
            TAKE(IN(0));
            p->close = 0;
            if (p->value == EMPTY && p->count) p->close = p->level + 1;
            else if (p->value == EMPTY) {
                SEND(OUT(0), EMPTY, p->level + 1);
            } else if (++p->count == chunk) {
                SEND(OUT(0), p->value, p->level + 1);
                p->count = 0;
            } else {
                SEND(OUT(0), p->value, 0);
                if (p->level) p->close = p->level + 1;
            }
        }
        if (p->close) {
            if (p->given[2] == EMPTY) WRONG;
            for (p->at = p->count; p->at < chunk; p->at++) SEND(OUT(0), p->given[2], p->at == chunk - 1 ? p->close : 0);
            p->count = 0;
        }
        if (p->level == EMPTY) break;
    }
    END;
}

static void op_promote(Engine *e, Process *p) { /* rank, outermost */
    i64 rank = p->given[0], outermost = p->given[1];
    BEGIN
    for (;;) {
        NEXT;
        p->any = 1;
        if (p->level < rank || outermost) {
            p->open = 1;
            SEND(OUT(0), p->value, p->level);
            continue;
        }
        if (p->value == EMPTY && !p->open && p->level == rank) SEND(OUT(0), EMPTY, rank);
        SEND(OUT(0), p->value, p->level + 1);
        p->open = 0;
    }
    if (outermost && p->any) SEND(OUT(0), EMPTY, rank);
    END;
}

static void op_expand(Engine *e, Process *p) { /* rank; the data is input 0, the reference input 1 */
    i64 rank = p->given[0];
    BEGIN
    for (;;) {
        AWAIT(IN(1))
        if (ENDED(IN(1))) break;
        TAKE(IN(1));
        p->bare = p->value == EMPTY;
        if (!p->bare) PEEK_ELEMENT(IN(0), p->value);
        SEND(OUT(0), p->value, p->level);
        p->closes = p->level >= rank && (!p->bare || p->open || p->level == rank);
        if (p->closes && (rank || !p->bare)) SKIP_ELEMENT(IN(0));
        p->open = !p->closes && (p->open || p->level < rank);
    }
    END;
}

static void op_repeat(Engine *e, Process *p) { /* count */
    BEGIN
    for (;;) {
        NEXT;
        if (p->value == EMPTY) {
            SEND(OUT(0), EMPTY, p->level + 1);
            continue;
        }
        for (p->at = 0; p->at < p->given[0]; p->at++) {
            work(p, e->element_cycles);
            SEND(OUT(0), p->value, p->at == p->given[0] - 1 ? p->level + 1 : 0);
        }
    }
    END;
}

/* Off-chip operators are given: bytes, latency, count of tiles, value of a tile (EMPTY: it depends on the index). */
#define FETCHED(index)                                                                                                   \
    if (p->given[3] != EMPTY) p->value = p->given[3];                                                                      \
    else {                                                                                                               \
        i64 which = (index);                                                                                               \
        const i64 *answer = ask(e, p, ASK_FETCH, p->node, &which, 1);                                                      \
        if (!answer) return;                                                                                             \
        p->value = answer[0];                                                                                              \
    }

static void op_linear_load(Engine *e, Process *p) { /* ..., held, depth, first of the walk in the pool, its length */
#define level_out(at) (walk[at].level + (walk[at].level == p->given[5] ? p->level : 0))
    Token *walk = e->pool + p->given[6];
    BEGIN
    p->loaded = 0;
    for (;;) {
        p->level = 0;
        if (p->n_in) {
            NEXT;
            if (p->value == EMPTY) {
                SEND(OUT(0), EMPTY, p->level + p->given[5]);
                continue;
            }
        }
        for (p->at = 0; p->at < p->given[7]; p->at++) {
            if (p->at < p->loaded) {
                p->value = p->kept.at[p->at].value;
                work(p, e->element_cycles);
            } else {
                TRANSFER(p->given[0], p->given[1]);
                walk = e->pool + p->given[6];
                FETCHED(walk[p->at].value)
                walk = e->pool + p->given[6];
                if (p->given[4]) {
                    PUSH(p->kept, ((Token){p->value, 0, 0}));
                    p->loaded++;
                }
            }
            SEND(OUT(0), p->value, level_out(p->at));
        }
        if (!p->n_in) break;
    }
    END;
}

static void op_linear_store(Engine *e, Process *p) { /* ... */
    BEGIN
    for (;;) {
        AWAIT(IN(0))
        if (ENDED(IN(0))) break;
        if (look(p, IN(0)).value != EMPTY) {
            if (p->index++ >= p->given[2]) WRONG;
            TRANSFER(p->given[0], p->given[1]);
        }
        take(e, p, IN(0));
    }
    END;
}

static void op_random_load(Engine *e, Process *p) { /* ..., tiles of a slab or 0 */
    BEGIN
    p->slab = -1;
    for (;;) {
        NEXT;
        if (p->value != EMPTY) {
            p->index = e->values[p->value].address;
            if (p->index < 0 || p->index >= p->given[2]) WRONG;
            if (p->given[4]) {
                if (p->slab != -1 && p->slab != p->index / p->given[4]) work(p, e->reconfigure_cycles);
                p->slab = p->index / p->given[4];
            }
            TRANSFER(p->given[0], p->given[1]);
            FETCHED(p->index)
        }
        SEND(OUT(0), p->value, p->level);
    }
    END;
}

static void op_random_store(Engine *e, Process *p) { /* ...; the value is that of an acknowledgement */
    BEGIN
    for (;;) {
        AWAIT(IN(0))
        if (ENDED(IN(0))) break;
        {
            Token t = look(p, IN(0));
            p->value = t.value, p->level = t.level;
        }
        if (p->value != EMPTY) {
            PEEK_ELEMENT(IN(1), p->of);
            if (e->values[p->value].address < 0 || e->values[p->value].address >= p->given[2]) WRONG;
            TRANSFER(p->given[0], p->given[1]);
            AWAIT(IN(1))
            take(e, p, IN(1));
            p->value = p->given[3];
        }
        take(e, p, IN(0));
        SEND(OUT(0), p->value, p->level);
    }
    END;
}

static void op_bufferize(Engine *e, Process *p) { /* rank */
    i64 rank = p->given[0];
    BEGIN
    for (;;) {
        NEXT;
        if (p->value != EMPTY) work(p, e->element_cycles);
        if (p->level < rank) {
            PUSH(p->kept, ((Token){p->value, p->level, 0}));
            continue;
        }
        if (p->value != EMPTY || p->kept.count || p->level == rank) {
            if (p->value != EMPTY) PUSH(p->kept, ((Token){p->value, rank, 0}));
            GROW(e->values, e->n_values, e->size_values)
            e->values[e->n_values] = (Value){0, -1, e->n_pool, p->kept.count};
            for (i64 i = 0; i < p->kept.count; i++) {
                GROW(e->pool, e->n_pool, e->size_pool)
                e->pool[e->n_pool++] = p->kept.at[(p->kept.head + i) & (p->kept.size - 1)];
            }
            p->kept.count = 0;
            p->value = e->n_values++;
        }
        SEND(OUT(0), p->value, p->level - rank);
    }
    END;
}

/* Given: depth, first and count of the levels of its turns in the pool, rank of the reference or -1, new dims. */
static void op_streamify(Engine *e, Process *p) {
#define BUFFER e->values[p->of]
#define ITEM e->pool[BUFFER.first + p->at]
    i64 depth = p->given[0], by = p->given[3], other = by >= 0;
    BEGIN
    for (;;) {
        AWAIT(IN(other))
        if (ENDED(IN(other))) break;
        TAKE(IN(other));
        p->bare = p->value == EMPTY;
        p->of = p->value;
        if (p->bare) {
            SEND(OUT(0), EMPTY, p->level + depth + (other ? 0 : p->given[4]));
            if (!other) continue;
        } else if (other) {
            PEEK_ELEMENT(IN(0), p->of);
        }
        for (p->turn = 0; !p->bare && p->turn < (other ? 1 : p->given[2]); p->turn++) {
            p->final = other ? p->level + depth : depth + e->pool[p->given[1] + p->turn].level;
            if (!other && p->turn == p->given[2] - 1) p->final += p->level;
            for (p->at = 0; p->at < BUFFER.count; p->at++) {
                if (ITEM.value != EMPTY) work(p, e->element_cycles);
                SEND(OUT(0), ITEM.value, p->at == BUFFER.count - 1 && ITEM.value != EMPTY ? p->final : ITEM.level);
                if (p->at == BUFFER.count - 1 && ITEM.value == EMPTY) SEND(OUT(0), EMPTY, p->final);
            }
            if (!BUFFER.count) {
                SEND(OUT(0), EMPTY, depth);
                if (p->final > depth) SEND(OUT(0), EMPTY, p->final);
            }
        }
        if (!other) continue;
        p->turn = p->level >= by && (!p->bare || p->open || p->level == by);
        if (p->turn) SKIP_ELEMENT(IN(0));
        p->open = !p->turn && (p->open || p->level < by);
    }
    END;
}

static void op_window(Engine *e, Process *p) { /* rank, depth, groups, first and count of the table in the pool */
#define STOP e->pool[p->given[3] + p->at]
#define ELEMENT (STOP.value == EMPTY ? EMPTY : p->kept.at[STOP.value].value)
    i64 rank = p->given[0], depth = p->given[1];
    BEGIN
    for (;;) {
        for (; p->at < p->given[4] && (p->open || p->groups < p->given[2]); p->at++) {
            if (STOP.value != EMPTY && STOP.value >= p->arrived) break;
            if (STOP.value != EMPTY) work(p, e->element_cycles);
            SEND(OUT(0), ELEMENT, STOP.level);
        }
        if (p->given[2] > 0 && p->groups == p->given[2]) break;
        NEXT;
        if (p->value != EMPTY) {
            PUSH(p->kept, ((Token){p->value, 0, 0}));
            p->arrived++;
        }
        p->closes = p->level >= rank && (p->open || p->value != EMPTY || p->level == rank);
        p->open = p->open || p->value != EMPTY || p->level <= rank;
        if (p->closes) {
            for (; p->at < p->given[4]; p->at++) {
                if (STOP.value != EMPTY && STOP.value >= p->arrived) WRONG;
                if (STOP.value != EMPTY) work(p, e->element_cycles);
                SEND(OUT(0), ELEMENT, STOP.level);
            }
            p->kept.count = p->arrived = p->at = p->open = 0;
            p->groups++;
        }
        if (p->level > rank) SEND(OUT(0), EMPTY, p->level - rank + depth);
    }
    END;
}

/* A routed value, and the time of routing it. */
#define MOVED                                                                                                            \
    do {                                                                                                                 \
        i64 which[2] = {p->value, p->given[1]};                                                                              \
        const i64 *answer = ask(e, p, ASK_MOVED, 0, which, 2);                                                             \
        if (!answer) return;                                                                                             \
        p->value = answer[0];                                                                                              \
        work(p, answer[1]);                                                                                              \
    } while (0)

static void op_partition(Engine *e, Process *p) { /* rank, write back; data, selectors */
    i64 rank = p->given[0];
    BEGIN
    p->chosen = EMPTY;
    for (;;) {
        NEXT;
        if (p->value == EMPTY && p->chosen == EMPTY && (p->level > rank || rank == 0)) continue;
        if (p->chosen == EMPTY) {
            do {
                AWAIT(IN(1))
                if (ENDED(IN(1))) WRONG;
                p->chosen = take(e, p, IN(1)).value;
            } while (p->chosen == EMPTY);
            const i64 *found = ask(e, p, ASK_TARGETS, p->node, &p->chosen, 1);
            if (!found) return;
            work(p, e->values[p->chosen].load);
        }
        if (p->value != EMPTY) MOVED;
        for (p->at = 0; p->at < e->values[p->chosen].count; p->at++)
            SEND(OUT(e->pool[e->values[p->chosen].first + p->at].value), p->value, p->level < rank ? p->level : rank);
        if (p->level >= rank) p->chosen = EMPTY;
    }
    END;
}

static void op_reassemble(Engine *e, Process *p) { /* rank, write back, then room for the order of each target */
#define TARGETS e->values[p->chosen]
    i64 rank = p->given[0], close = rank + 1, *order = p->given + 2, last = p->n_in - 1;
    BEGIN
    for (;;) {
        AWAIT(IN(last))
        if (ENDED(IN(last))) break;
        {
            Token t = take(e, p, IN(last));
            p->chosen = t.value, p->outer = t.level;
        }
        if (p->chosen == EMPTY) {
            SEND(OUT(0), EMPTY, p->outer + close);
            continue;
        }
        if (!ask(e, p, ASK_TARGETS, p->node, &p->chosen, 1)) return;
        for (p->at = 0; p->at < TARGETS.count; p->at++) {
            AWAIT(IN(e->pool[TARGETS.first + p->at].value))
            if (ENDED(IN(e->pool[TARGETS.first + p->at].value))) WRONG;
            look(p, IN(e->pool[TARGETS.first + p->at].value));
        }
        for (i64 i = 0; i < TARGETS.count; i++) {
            /* Insertion in the order of arrival; ties go to the lowest input. */
            i64 target = e->pool[TARGETS.first + i].value, time = FIRST(IN(target)->items).time, j = i;
            for (; j; j--) {
                i64 before = FIRST(IN(order[j - 1])->items).time;
                if (before < time || (before == time && order[j - 1] < target)) break;
                order[j] = order[j - 1];
            }
            order[j] = target;
        }
        for (p->at = 0; p->at < TARGETS.count; p->at++) {
            p->final = p->at == TARGETS.count - 1 ? close + p->outer : rank;
            do {
                AWAIT(IN(order[p->at]))
                if (ENDED(IN(order[p->at]))) WRONG;
                TAKE(IN(order[p->at]));
                p->ended = p->level >= rank;
                if (p->value != EMPTY) {
                    MOVED;
                    SEND(OUT(0), p->value, p->ended ? p->final : p->level);
                } else {
                    SEND(OUT(0), EMPTY, p->level);
                    if (p->ended && p->final > p->level) SEND(OUT(0), EMPTY, p->final);
                }
            } while (!p->ended);
        }
        if (!TARGETS.count) {
            SEND(OUT(0), EMPTY, close);
            if (p->outer) SEND(OUT(0), EMPTY, close + p->outer);
        }
    }
    END;
}

static i64 first_head(Engine *e, Process *p) {
    i64 found = -1;
    for (i64 i = 0; i < p->n_in; i++)
        if (IN(i)->items.count && (found < 0 || FIRST(IN(i)->items).time < FIRST(IN(found)->items).time)) found = i;
    return found;
}

static void op_eager_merge(Engine *e, Process *p) { /* rank, then the selector value of each input */
    BEGIN
    for (;;) {
        while ((p->of = first_head(e, p)) < 0) {
            p->any = 0;
            for (i64 i = 0; i < p->n_in; i++)
                if (IN(i)->closed < 0) p->any = IN(i)->reader_waits = 1;
            if (!p->any) break;
            p->line = 1;
            return;
            case 1:;
        }
        if (p->of < 0) {
            for (i64 i = 0; i < p->n_in; i++) reach(p, IN(i)->closed);
            break;
        }
        p->decided = 0;
        heap_push(&e->events, (Event){(double)FIRST(IN(p->of)->items).time, 1, ++e->sequence, p->number, 0, 0});
        WHILE_SLEEPING(!p->decided, )
        p->of = first_head(e, p);
        SEND(OUT(1), p->given[1 + p->of], 0);
        p->first = 1;
        do {
            AWAIT(IN(p->of))
            if (ENDED(IN(p->of))) WRONG;
            TAKE(IN(p->of));
            if (!p->first) work(p, e->element_cycles);
            p->first = 0;
            SEND(OUT(0), p->value, p->level);
        } while (p->level < p->given[0]);
    }
    END;
}

static void op_parallelize(Engine *e, Process *p) { /* rank */
    BEGIN
    for (;;) {
        NEXT;
        if (p->value != EMPTY) work(p, e->switch_cycles);
        SEND(OUT(p->turn), p->value, p->level);
        if (p->level >= p->given[0]) p->turn = (p->turn + 1) % p->n_out;
    }
    END;
}

