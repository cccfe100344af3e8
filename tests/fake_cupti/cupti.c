/* A libcupti.so for tests: a test that loads it "launches" kernels through fake_* and gets the records that CUPTI would make for them.
 *
 * Its clock runs 1000 s ahead of CLOCK_MONOTONIC and 100 ppm too fast. Records are delivered in buffers of the caller, some before the
 * flush, and correlations after the kernels that they belong to. FAKE_CUPTI_REFUSE=kernel fails cuptiActivityEnable. */
#include <cupti.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 1 << 20 };

typedef struct state {
    pthread_mutex_t lock;
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    CUpti_CallbackFunc callback;
    void *ctx;
    uint32_t correlation;
    uint64_t next_node;
    uint8_t late[ROOM]; /* correlation records wait here for the flush */
    size_t n_late;
    uint8_t *buffer;
    size_t room, used;
    bool on[CUPTI_ACTIVITY_KIND_COUNT];
} state;

static state s = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_node = 100};
static _Thread_local uint64_t stack[16];
static _Thread_local int depth;
static int64_t zero;

static int64_t monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t fake_clock(int64_t at)
{
    if (!zero) zero = at;
    return (uint64_t)(at + 1000000000000 + (at - zero) / 10000);
}

/* ---- CUPTI ---- */

CUptiResult cuptiGetVersion(uint32_t *version)
{
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **str)
{
    *str = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "?";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    *timestamp = fake_clock(monotonic());
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    s.request = request;
    s.complete = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    const char *refuse = getenv("FAKE_CUPTI_REFUSE");
    if (refuse && !strcmp(refuse, "kernel") && kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    s.on[kind] = true;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    s.on[kind] = false;
    return CUPTI_SUCCESS;
}

static size_t nbytes(CUpti_ActivityKind kind)
{
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return sizeof(CUpti_ActivityGraphTrace);
    default: return 0;
    }
}

static size_t up(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

static void hand_over(void)
{
    if (!s.buffer) return;
    s.complete(NULL, 0, s.buffer, s.room, s.used);
    s.buffer = NULL;
}

static void add(const void *record)
{
    size_t most = 0;
    const size_t n = nbytes(((const CUpti_Activity *)record)->kind);
    if (!s.on[((const CUpti_Activity *)record)->kind]) return;
    if (s.buffer && s.used + up(n) > 4096) hand_over(); /* small ones, so that several are needed */
    if (!s.buffer) {
        s.request(&s.buffer, &s.room, &most);
        s.used = 0;
    }
    memcpy(s.buffer + s.used, record, n);
    s.used += up(n);
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&s.lock);
    for (size_t at = 0; at < s.n_late; at += up(nbytes(((CUpti_Activity *)(void *)(s.late + at))->kind)))
        add(s.late + at);
    s.n_late = 0;
    hand_over();
    pthread_mutex_unlock(&s.lock);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + up(nbytes((*record)->kind)) : buffer;
    if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (void *)next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    *dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id)
{
    (void)kind;
    stack[depth++] = id;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last)
{
    (void)kind;
    if (!depth) return CUPTI_ERROR_QUEUE_EMPTY;
    *last = stack[--depth];
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetGraphNodeId(CUgraphNode node, uint64_t *id)
{
    *id = (uint64_t)(uintptr_t)node;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *ctx)
{
    *subscriber = (CUpti_SubscriberHandle)(void *)&s;
    s.callback = callback;
    s.ctx = ctx;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
    (void)subscriber;
    s.callback = NULL;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id)
{
    (void)enable;
    (void)subscriber;
    (void)domain;
    (void)id;
    return CUPTI_SUCCESS;
}

/* ---- what a program does ---- */

void fake_kernel(const char *name, uint32_t stream, int64_t begin, int64_t end);
void fake_copy(uint64_t bytes, uint32_t stream, int64_t begin, int64_t end);
uint64_t fake_node(void);
uint64_t fake_clone(uint64_t node);
void fake_graph(uint32_t graph, const uint64_t *node, const char *const *name, int n, uint32_t stream, int64_t begin,
                int64_t each);

static uint32_t call(void)
{
    const uint32_t id = ++s.correlation;
    if (depth && s.on[CUPTI_ACTIVITY_KIND_RUNTIME] && s.n_late + 64 < ROOM) {
        const CUpti_ActivityExternalCorrelation e = {.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                     .externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                     .externalId = stack[depth - 1],
                                                     .correlationId = id};
        memcpy(s.late + s.n_late, &e, sizeof e);
        s.n_late += up(sizeof e);
    }
    return id;
}

static void kernel(const char *name, uint32_t stream, int64_t begin, int64_t end, uint32_t id, uint64_t node,
                   uint32_t graph)
{
    const CUpti_ActivityKernel9 k = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                     .start = fake_clock(begin),
                                     .end = fake_clock(end),
                                     .streamId = stream,
                                     .correlationId = id,
                                     .name = name,
                                     .graphNodeId = node,
                                     .graphId = graph};
    add(&k);
}

void fake_kernel(const char *name, uint32_t stream, int64_t begin, int64_t end)
{
    pthread_mutex_lock(&s.lock);
    kernel(name, stream, begin, end, call(), 0, 0);
    pthread_mutex_unlock(&s.lock);
}

void fake_copy(uint64_t bytes, uint32_t stream, int64_t begin, int64_t end)
{
    pthread_mutex_lock(&s.lock);
    const CUpti_ActivityMemcpy5 k = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                                     .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD,
                                     .bytes = bytes,
                                     .start = fake_clock(begin),
                                     .end = fake_clock(end),
                                     .streamId = stream,
                                     .correlationId = call()};
    add(&k);
    pthread_mutex_unlock(&s.lock);
}

static void tell(CUpti_CallbackId id, uint64_t node, uint64_t original)
{
    CUpti_GraphData g = {.node = (CUgraphNode)(uintptr_t)node, .originalNode = (CUgraphNode)(uintptr_t)original};
    CUpti_ResourceData r = {.resourceDescriptor = &g};
    if (s.callback) s.callback(s.ctx, CUPTI_CB_DOMAIN_RESOURCE, id, &r);
}

uint64_t fake_node(void)
{
    const uint64_t node = s.next_node++;
    tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, node, 0);
    return node;
}

uint64_t fake_clone(uint64_t original)
{
    const uint64_t node = s.next_node++;
    tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, node, original);
    return node;
}

void fake_graph(uint32_t graph, const uint64_t *node, const char *const *name, int n, uint32_t stream, int64_t begin,
                int64_t each)
{
    pthread_mutex_lock(&s.lock);
    const uint32_t id = call();
    if (s.on[CUPTI_ACTIVITY_KIND_GRAPH_TRACE]) {
        const CUpti_ActivityGraphTrace g = {.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE,
                                            .correlationId = id,
                                            .start = fake_clock(begin),
                                            .end = fake_clock(begin + n * each),
                                            .graphId = graph,
                                            .streamId = stream};
        add(&g);
    } else {
        for (int i = 0; i < n; i++)
            kernel(name[i], stream, begin + i * each, begin + (i + 1) * each, id, node[i], graph);
    }
    pthread_mutex_unlock(&s.lock);
}
