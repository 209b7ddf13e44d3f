#include "comm.h"

static const char *const kind_names[] = {"reduce", "reduce-scatter", "gather", "broadcast", "barrier"};

const char *comm_kind_name(CommKind k) { return kind_names[k]; }

size_t comm_bytes(const CommCall *c, int world) {
    size_t part = c->count * dtype_size(c->dtype), others = (size_t)world - 1;
    switch (c->kind) {
    case COMM_REDUCE: return 2 * others * part / (size_t)world;
    case COMM_REDUCE_SCATTER:
    case COMM_GATHER: return others * part;
    case COMM_BROADCAST: return part;
    case COMM_BARRIER: return 0;
    }
    return 0;
}

bool comm_start(Comm *c, CommCall call, Err *e) {
    if (!comm_live(c)) return true;
    CHECK(!call.at || c->device, "a device's memory by %s", c->ops->name);
    uint64_t h = rng_name(c->log, call.name);
    h = rng_mix(h, (uint64_t)call.kind);
    h = rng_mix(h, (uint64_t)call.count);
    h = rng_mix(h, (uint64_t)call.dtype << 32 | (uint64_t)(uint32_t)call.root);
    c->log = h;
    c->calls++;
    c->sent += comm_bytes(&call, c->world);
    return c->ops->start(c, &call, e);
}
bool comm_wait(Comm *c, Err *e) { return !comm_live(c) || c->ops->wait(c, e); }
bool comm_do(Comm *c, CommCall call, Err *e) { return comm_start(c, call, e) && comm_wait(c, e); }
bool comm_barrier(Comm *c, const char *name, Err *e) {
    return comm_do(c, (CommCall){.kind = COMM_BARRIER, .name = name, .dtype = F32}, e);
}
void comm_stop(Comm *c) {
    if (c && c->ops && c->ops->stop) c->ops->stop(c);
}
void comm_close(Comm *c) {
    const CommOps *ops = c ? c->ops : NULL;
    if (!ops) return;
    c->ops = NULL; /* before: most transports free c */
    if (ops->close) ops->close(c);
}
