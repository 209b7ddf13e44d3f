/* state.c: see state.h. A copy lays the states out as their regions do, one after the other, guards and all. */
#include "state.h"
#include "ops/host.h"

const char *states_memory(const Optimizer *o, int k) {
    const char *rest = o->takes ? adamw_optimizer.memory[k] : NULL;
    return o->memory[k] ? o->memory[k] : rest;
}

/* One region for each state, or one for all. */
static void states_take(Params *s, Arena *mem, int stride) {
    for (int k = 0; k < STATES_MAX; k++)
        for (int i = 0; i < s->n; i++) {
            Tensor *t = &s->p[i].state[k].t;
            if (present(*t)) t->p = arena_take(&mem[k * stride], tensor_bytes(*t), s->p[i].name);
        }
}
void states_place(Params *s, Arena mem[STATES_MAX]) { states_take(s, mem, 1); }

bool states_open(Params *s, Arena mem[STATES_MAX], const Optimizer *o, Device *dev, bool poison, bool dry, Err *e) {
    for (int k = 0; k < STATES_MAX; k++) {
        const char *name = states_memory(o, k);
        mem[k].name = name ? name : "states of the optimizer"; /* of AdamW, for FIELD_BALANCE */
        mem[k].used = 0;
    }
    states_place(s, mem);
    if (dry) return true;
    for (int k = 0; k < STATES_MAX; k++)
        if (!arena_open_at(&mem[k], device_memory(dev, false), mem[k].name, mem[k].peak, poison, e)) {
            states_close(mem);
            return false;
        }
    states_place(s, mem);
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < STATES_MAX; k++) {
            const Tensor t = s->p[i].state[k].t;
            if (present(t)) device_zero(dev, t.p, tensor_bytes(t));
        }
    return true;
}
void states_close(Arena mem[STATES_MAX]) {
    for (int k = 0; k < STATES_MAX; k++) arena_close(&mem[k]);
}

bool state_copy_open(StateCopy *c, const Params *s, const Arena mem[STATES_MAX], bool dry, Err *e) {
    size_t bytes = 0;
    for (int k = 0; k < STATES_MAX; k++) bytes += zmax(mem[k].size, mem[k].peak);
    *c = (StateCopy){.mem = {.name = "copy of the optimizer's state", .peak = bytes}};
    if (dry) return true;
    if (!arena_open(&c->mem, c->mem.name, bytes, false, e)) return false;
    c->p = (Params){.n = s->n, .cap = s->n, .p = xcalloc((size_t)s->n, sizeof *c->p.p)};
    if (s->n) memcpy(c->p.p, s->p, (size_t)s->n * sizeof *c->p.p);
    states_take(&c->p, &c->mem, 0);
    return true;
}
void state_copy_take(StateCopy *c, const Params *s, const Arena mem[STATES_MAX], Device *dev) {
    char *to = c->mem.base;
    for (int k = 0; k < STATES_MAX && !device_apart(dev); k++) {
        host_copy(dev, to, mem[k].base, mem[k].used);
        to += mem[k].used;
    }
    for (int i = 0; i < s->n && device_apart(dev); i++)
        for (int k = 0; k < STATES_MAX; k++) {
            const Tensor from = s->p[i].state[k].t;
            if (present(from)) device_read(dev, c->p.p[i].state[k].t.p, from.p, tensor_bytes(from));
        }
}
void state_copy_close(StateCopy *c) {
    params_free(&c->p);
    arena_close(&c->mem);
    *c = (StateCopy){0};
}
