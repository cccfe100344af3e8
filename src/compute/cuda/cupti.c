/* cupti.c - kernels, copies and fills with their times, from CUPTI's activity records.
 *
 *   we       at(place): external correlation id = place           every call that this thread makes …
 *   CUPTI    (place, correlation)          EXTERNAL_CORRELATION    … has a correlation id
 *            (correlation, stream, begin, end)   KERNEL, MEMCPY, MEMSET
 *
 * A graph's kernels all have the correlation of its launch, so their places come from the recording: when a node is created (capture)
 * it gets the place of the thread, when it is cloned (instantiation) that of its original; records name the node.
 *
 * Times are CUPTI's clock. It is compared with ours at the begin and at the end, 16 times each, the narrowest pair of readings counts; what
 * is between is interpolated.
 *
 * libcupti is loaded when it is asked for (LS_CUPTI_LIBRARY names another file). LS_CUPTI=graph sees graphs as one span (less work for
 * CUPTI), LS_CUPTI=off leaves it out. CUPTI calls back without a context: one collection per process.
 *
 * Invariants
 *   1. memory is taken at begin; a full table forgets its oldest records and counts them;
 *   2. nothing here changes what is computed; a failure of CUPTI ends the collecting, not the run. */
#include "compute/kernel_source.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((visibility("default"))) const ls_kernel_source *ls_kernel_source_plugin(void);

#if defined(__has_include) && !defined(LS_EMU) /* an emulated device has no CUPTI */
#if __has_include(<cupti.h>)
#include <cupti.h>
#if CUPTI_API_VERSION >= 130000 /* the records below */
#define HAVE_CUPTI 1
#endif
#endif
#endif

#ifdef HAVE_CUPTI
#define CALLS(X)                              \
    X(cuptiGetVersion)                        \
    X(cuptiGetResultString)                   \
    X(cuptiGetTimestamp)                      \
    X(cuptiActivityRegisterCallbacks)         \
    X(cuptiActivityEnable)                    \
    X(cuptiActivityDisable)                   \
    X(cuptiActivityFlushAll)                  \
    X(cuptiActivityGetNextRecord)             \
    X(cuptiActivityGetNumDroppedRecords)      \
    X(cuptiActivityPushExternalCorrelationId) \
    X(cuptiActivityPopExternalCorrelationId)  \
    X(cuptiGetGraphNodeId)                    \
    X(cuptiSubscribe)                         \
    X(cuptiUnsubscribe)                       \
    X(cuptiEnableCallback)

typedef struct record {
    const char *name; /* one of `names` */
    uint64_t begin, end, node;
    int64_t bytes;
    uint32_t correlation, stream, graph;
    uint8_t kind;
} record;

typedef struct pair { /* direct-mapped by its key: a newer one takes the place of an older one */
    uint32_t correlation, place;
} pair;

typedef struct node { /* open addressing; id 0: free */
    uint64_t id;
    uint32_t place;
} node;

typedef struct fix {
    uint64_t theirs;
    int64_t offset, error;
} fix;

enum { N_PAIR = 1 << 20, N_NODE = 1 << 17, N_NAME = 4096, BUFFER = 4 << 20, ROUNDS = 16 };

typedef struct collection {
    void *library;
    struct {
#define X(name) __typeof__(&name) name;
        CALLS(X)
#undef X
    } f;
    CUpti_SubscriberHandle subscriber;
    bool subscribed, whole_graphs;
    uint64_t enabled;     /* kinds of records, as bits */
    pthread_mutex_t lock; /* of all below: CUPTI calls from threads of its own */
    record *record;
    uint64_t cap, n, lost;
    pair *pair;
    node *node;
    uint64_t n_node;
    char *name[N_NAME]; /* hashed */
    fix fix[2];
} collection;

static collection *here; /* NULL: not collecting */
static _Thread_local uint32_t place_here;

/* ---- what CUPTI tells ---- */

/* A copy that outlives the kernel's module. The lock is held. */
static const char *keep_name(collection *c, const char *name)
{
    uint64_t h = 1469598103934665603u;
    if (!name) return "?";
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211u;
    for (uint64_t i = 0; i < N_NAME; i++) {
        char **slot = &c->name[(h + i) % N_NAME];
        if (!*slot) *slot = strdup(name);
        if (!*slot) return "?";
        if (!strcmp(*slot, name)) return *slot;
    }
    return "other kernels";
}

static const char *copy_word(unsigned kind)
{
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: return "copy host to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "copy between devices";
    default: return "copy";
    }
}

/* Only members that every version of a record has at this place are read: newer ones are added after. The types are those that CUDA 12.1 has. */
static void take(collection *c, const CUpti_Activity *a)
{
    record *r = &c->record[c->n % c->cap];
    switch (a->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel9 *k = (const void *)a;
        *r = (record){keep_name(c, k->name), k->start,    k->end,     k->graphNodeId, 0,
                      k->correlationId,      k->streamId, k->graphId, LS_KERNEL_RUN};
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy5 *k = (const void *)a;
        *r = (record){copy_word(k->copyKind), k->start,    k->end,     k->graphNodeId, (int64_t)k->bytes,
                      k->correlationId,       k->streamId, k->graphId, LS_KERNEL_COPY};
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *k = (const void *)a;
        *r = (record){"fill",           k->start,    k->end,     k->graphNodeId, (int64_t)k->bytes,
                      k->correlationId, k->streamId, k->graphId, LS_KERNEL_FILL};
        break;
    }
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: {
        const CUpti_ActivityGraphTrace *k = (const void *)a;
        *r = (record){"graph", k->start, k->end, 0, 0, k->correlationId, k->streamId, k->graphId, LS_KERNEL_GRAPH};
        break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const CUpti_ActivityExternalCorrelation *k = (const void *)a;
        if (k->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0)
            c->pair[k->correlationId % N_PAIR] = (pair){k->correlationId, (uint32_t)k->externalId};
        return;
    }
    default: return; /* API calls: only their correlation is wanted */
    }
    c->n++;
}

static void CUPTIAPI buffer_requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *most = 0;
    *buffer = aligned_alloc(64, BUFFER);
    *size = *buffer ? BUFFER : 0;
}

static void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    collection *c = here;
    CUpti_Activity *a = NULL;
    size_t dropped = 0;
    (void)size;
    if (c) {
        pthread_mutex_lock(&c->lock);
        while (valid && c->f.cuptiActivityGetNextRecord(buffer, valid, &a) == CUPTI_SUCCESS) take(c, a);
        if (c->f.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) c->lost += dropped;
        pthread_mutex_unlock(&c->lock);
    }
    free(buffer);
}

/* ---- places of a graph's nodes ---- */

static node *slot_of(collection *c, uint64_t id)
{
    for (uint64_t i = 0, h = id * 0x9E3779B97F4A7C15u >> 47; i < N_NODE; i++) {
        node *x = &c->node[(h + i) % N_NODE];
        if (x->id == id || !x->id) return x;
    }
    return NULL;
}

static void node_is_at(collection *c, CUgraphNode which, uint32_t place)
{
    uint64_t id = 0;
    if (!place || c->f.cuptiGetGraphNodeId(which, &id) != CUPTI_SUCCESS || !id) return;
    node *x = slot_of(c, id);
    if (!x || (!x->id && c->n_node >= N_NODE / 4 * 3)) return;
    c->n_node += !x->id;
    *x = (node){id, place};
}

static uint32_t place_of_node(collection *c, uint64_t id)
{
    const node *x = id ? slot_of(c, id) : NULL;
    return x && x->id ? x->place : 0;
}

static void CUPTIAPI called(void *ctx, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    collection *c = ctx;
    if (domain != CUPTI_CB_DOMAIN_RESOURCE || !data) return;
    const CUpti_GraphData *g = ((const CUpti_ResourceData *)data)->resourceDescriptor;
    if (!g) return;
    pthread_mutex_lock(&c->lock);
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
        node_is_at(c, g->node, place_here);
    } else if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) {
        uint64_t from = 0;
        if (c->f.cuptiGetGraphNodeId(g->originalNode, &from) == CUPTI_SUCCESS)
            node_is_at(c, g->node, place_of_node(c, from));
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- begin ---- */

static bool load(collection *c, char *words, size_t room)
{
    char named[32], below[512];
    const char *mine = getenv("LS_CUPTI_LIBRARY"), *home = getenv("CUDA_HOME");
    snprintf(named, sizeof named, "libcupti.so.%d", CUPTI_API_VERSION / 10000);
    snprintf(below, sizeof below, "%.400s/extras/CUPTI/lib64/libcupti.so", home && *home ? home : "/usr/local/cuda");
    const char *const paths[] = {mine && *mine ? mine : named, mine && *mine ? NULL : below};
    for (size_t i = 0; i < 2 && !c->library && paths[i]; i++) c->library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
    if (!c->library) return snprintf(words, room, "no CUPTI: %s", dlerror()), false;
    const struct {
        const char *name;
        void *to;
    } calls[] = {
#define X(name) {#name, &c->f.name},
        CALLS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *p = dlsym(c->library, calls[i].name);
        if (!p) return snprintf(words, room, "CUPTI has no %s", calls[i].name), false;
        memcpy(calls[i].to, &p, sizeof p);
    }
    uint32_t version = 0;
    if (c->f.cuptiGetVersion(&version) == CUPTI_SUCCESS && version / 10000 == CUPTI_API_VERSION / 10000) return true;
    snprintf(words, room, "CUPTI has version %u, but this program was built for %d: its records differ", version,
             CUPTI_API_VERSION);
    return false;
}

static bool allocate(collection *c, int64_t n_record, char *words, size_t room)
{
    c->cap = n_record > 1024 ? (uint64_t)n_record : 1024;
    c->record = calloc(c->cap, sizeof *c->record);
    c->pair = calloc(N_PAIR, sizeof *c->pair);
    c->node = calloc(N_NODE, sizeof *c->node);
    if (c->record && c->pair && c->node) return true;
    snprintf(words, room, "no memory for %lld records of CUPTI", (long long)n_record);
    return false;
}

static void destroy(collection *c)
{
    for (int i = 0; i < N_NAME; i++) free(c->name[i]);
    free(c->record);
    free(c->pair);
    free(c->node);
    pthread_mutex_destroy(&c->lock);
    free(c); /* the library stays: it has threads and hooks of its own */
}

static bool enable(collection *c, CUpti_ActivityKind kind, char *words, size_t room)
{
    const CUptiResult rc = c->f.cuptiActivityEnable(kind);
    const char *why = "?";
    if (rc == CUPTI_SUCCESS) {
        c->enabled |= UINT64_C(1) << kind;
        return true;
    }
    if (words) {
        c->f.cuptiGetResultString(rc, &why);
        snprintf(words, room, "CUPTI refuses: %s (%d)", why, (int)rc);
    }
    return false;
}

static void disable_all(collection *c)
{
    for (int kind = 0; kind < 64; kind++)
        if (c->enabled >> kind & 1) (void)c->f.cuptiActivityDisable((CUpti_ActivityKind)kind);
    c->enabled = 0;
    if (c->subscribed) (void)c->f.cuptiUnsubscribe(c->subscriber);
    c->subscribed = false;
}

static void subscribe(collection *c)
{
    if (c->f.cuptiSubscribe(&c->subscriber, called, c) != CUPTI_SUCCESS)
        return; /* another profiler has it: no places in graphs */
    c->subscribed = true;
    (void)c->f.cuptiEnableCallback(1, c->subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
    (void)c->f.cuptiEnableCallback(1, c->subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
}

static int64_t monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static fix compare_clocks(const collection *c)
{
    fix best = {.error = INT64_MAX};
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t theirs = 0;
        const int64_t before = monotonic();
        const CUptiResult rc = c->f.cuptiGetTimestamp(&theirs);
        const int64_t after = monotonic(), half = (after - before) / 2;
        if (rc != CUPTI_SUCCESS || half >= best.error) continue;
        best = (fix){theirs, before + half - (int64_t)theirs, half};
    }
    return best;
}

static bool collect(collection *c, char *words, size_t room)
{
    const char *how = getenv("LS_CUPTI");
    c->whole_graphs = how && !strcmp(how, "graph");
    if (c->f.cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed) != CUPTI_SUCCESS)
        return snprintf(words, room, "CUPTI does not accept buffers"), false;
    subscribe(c);
    if (!enable(c, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, words, room)) return false;
    (void)enable(c, CUPTI_ACTIVITY_KIND_MEMCPY, NULL, 0);
    (void)enable(c, CUPTI_ACTIVITY_KIND_MEMSET, NULL, 0);
    if (enable(c, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, NULL, 0)) {
        (void)enable(c, CUPTI_ACTIVITY_KIND_RUNTIME, NULL,
                     0); /* a correlation is reported for calls that are recorded */
        (void)enable(c, CUPTI_ACTIVITY_KIND_DRIVER, NULL, 0);
    }
    if (c->whole_graphs) c->whole_graphs = enable(c, CUPTI_ACTIVITY_KIND_GRAPH_TRACE, NULL, 0);
    c->fix[0] = compare_clocks(c);
    if (c->fix[0].error == INT64_MAX) return snprintf(words, room, "CUPTI does not report timestamps"), false;
    return true;
}

static bool cupti_begin(int64_t n_record, char *words, size_t room)
{
    const char *how = getenv("LS_CUPTI");
    if (how && !strcmp(how, "off")) return snprintf(words, room, "LS_CUPTI=off"), false;
    if (here) return snprintf(words, room, "CUPTI is already collecting"), false;
    collection *c = calloc(1, sizeof *c);
    if (!c) return snprintf(words, room, "no memory for CUPTI's records"), false;
    pthread_mutex_init(&c->lock, NULL);
    here = c;
    if (!load(c, words, room) || !allocate(c, n_record, words, room) || !collect(c, words, room)) {
        disable_all(c);
        here = NULL;
        destroy(c);
        return false;
    }
    snprintf(words, room, "CUPTI, %s; clocks within %lld ns", c->whole_graphs ? "graphs as a whole" : "every kernel",
             (long long)c->fix[0].error);
    return true;
}

static uint32_t cupti_at(uint32_t place)
{
    const collection *c = here;
    const uint32_t before = place_here;
    uint64_t last;
    if (!c || place == before) return before;
    place_here = place;
    if (!(c->enabled >> CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION & 1)) return before;
    if (before) (void)c->f.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
    if (place) (void)c->f.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, place);
    return before;
}

/* ---- end ---- */

/* A moment of CUPTI's clock on ours. */
static int64_t on_our_clock(const collection *c, uint64_t at)
{
    const fix *a = &c->fix[0], *b = &c->fix[1];
    double part = 0;
    if (b->theirs > a->theirs) part = (double)(int64_t)(at - a->theirs) / (double)(b->theirs - a->theirs);
    return (int64_t)at + a->offset + (int64_t)(part * (double)(b->offset - a->offset));
}

static uint32_t place_of(collection *c, const record *r)
{
    const uint32_t p = place_of_node(c, r->node);
    const pair *x = &c->pair[r->correlation % N_PAIR];
    return p ? p : r->correlation && x->correlation == r->correlation ? x->place : 0;
}

static void cupti_end(ls_kernel_sink *sink, void *ctx, ls_kernel_facts *facts)
{
    collection *c = here;
    *facts = (ls_kernel_facts){0};
    if (!c) return;
    (void)cupti_at(0);
    (void)c->f.cuptiActivityFlushAll(1); /* also of buffers that are not full */
    c->fix[1] = compare_clocks(c);
    if (c->fix[1].error == INT64_MAX) c->fix[1] = c->fix[0];
    disable_all(c);
    pthread_mutex_lock(&c->lock);
    const uint64_t first = c->n > c->cap ? c->n - c->cap : 0;
    for (uint64_t i = first; i < c->n; i++) {
        const record *r = &c->record[i % c->cap];
        if (!r->begin || r->end < r->begin) { /* CUPTI could not time it */
            c->lost++;
            continue;
        }
        const ls_kernel_record out = {.name = r->name,
                                      .begin = on_our_clock(c, r->begin),
                                      .end = on_our_clock(c, r->end),
                                      .bytes = r->bytes,
                                      .place = place_of(c, r),
                                      .stream = r->stream,
                                      .graph = r->graph,
                                      .kind = r->kind};
        sink(ctx, &out);
    }
    *facts = (ls_kernel_facts){.seen = (int64_t)c->n,
                               .dropped = (int64_t)first,
                               .lost = (int64_t)c->lost,
                               .offset = {c->fix[0].offset, c->fix[1].offset},
                               .error = c->fix[0].error > c->fix[1].error ? c->fix[0].error : c->fix[1].error,
                               .whole_graphs = c->whole_graphs};
    pthread_mutex_unlock(&c->lock);
    here = NULL;
    destroy(c);
}

static const ls_kernel_source source = {"CUPTI", cupti_begin, cupti_at, cupti_end};

#else

static bool cupti_begin(int64_t n_record, char *words, size_t room)
{
    (void)n_record;
    snprintf(words, room, "built without the headers of CUPTI 13");
    return false;
}

static const ls_kernel_source source = {.name = "CUPTI", .begin = cupti_begin};

#endif

const ls_kernel_source *ls_kernel_source_plugin(void)
{
    return &source;
}
