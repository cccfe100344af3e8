/* runtime.cpp - the emulator's memory, streams, events and graphs (runtime.h describes how they differ from CUDA's).
 *
 *   stream: a queue of pending operations. An operation is a closure with its arguments by value, as in a launch.
 *   event:  counts how often it was recorded and how many of these records have run.
 *   graph:  the operations that were added to a stream while it captured.
 *   waiting kernel (emu_stream_poll): stays at the head of its stream, and so of its hardware queue, until its function reports the end.
 *
 * One lock for everything. A thread that waits runs the operations that it waits for, with the lock held. If these depend on a waiting kernel, it releases
 * the lock and tries again. Peers in other processes need waiting kernels and the operations before them to run although no thread here waits: a
 * separate thread (drive) runs those, and only those, so that everything else stays lazy. */
#include "compute/card.h"
#include "fake_cuda/grid.h"
#include "fake_cuda/runtime.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

struct event_state {
    uint64_t issued = 0;
    std::map<uint64_t, emu_stream *> waiting; /* records that have not run, and where they are */
    double at = 0;                            /* seconds, of the last record that ran */
    bool captured = false, timed = true;
    bool passed() const { return waiting.empty() || waiting.rbegin()->first < issued; }
};

struct op {
    emu_body run;                  /* or: */
    int (*over)(void *) = nullptr; /* a kernel that waits: asked until it is not 0; or: */
    void *arg = nullptr;
    uint64_t ticket = 0;                /* in the order of all streams */
    std::shared_ptr<event_state> event; /* wait for its record number `turn`; or, records: it is that record */
    uint64_t turn = 0;
    bool records = false;
};

struct region {
    size_t nbytes;
    int device;
    bool mapped; /* by mmap, with guard pages      */
    bool closed; /* mapped, with LS_EMU_PROTECT */
};

/* Recursive; a holder can release it for a while, however often it has locked it. */
struct big_lock {
    std::mutex m;
    static thread_local int depth;
    void lock()
    {
        if (!depth++) m.lock();
    }
    void unlock()
    {
        if (!--depth) m.unlock();
    }
    void let_go(long ns)
    {
        const int had = depth;
        depth = 0;
        m.unlock();
        const timespec t = {0, ns};
        nanosleep(&t, nullptr);
        m.lock();
        depth = had;
    }
};
thread_local int big_lock::depth = 0;

struct world {
    big_lock lock;
    std::condition_variable_any polled; /* a kernel that waits was queued */
    bool driven = false;
    int next_queue = 0;
    uint64_t tickets = 0;
    std::set<std::string> loaded; /* kernels that were launched before */
    std::map<uintptr_t, region> device_memory, pinned;
    std::set<emu_stream *> streams;
    std::set<emu_event *> events;
    std::map<const void *, int> shared_limit; /* of kernels that asked for more than 48 KiB */
    std::map<int, size_t> used;               /* bytes, by device */
    std::map<std::string, std::pair<cudaError_t, int>> to_fail;
    cudaError_t broken = cudaSuccess;
    int n_graph = 0;
    int64_t launches = 0, graph_launches = 0;
    bool running = false;
};

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

world &w()
{
    static world *one = new world(); /* never destroyed */
    return *one;
}

long long setting(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, nullptr, 10) : otherwise;
}

double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

cudaError_t say(cudaError_t e)
{
    if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
    return e;
}

/* LS_EMU_FAIL=NAME:N: the N-th call of that name fails. */
bool fails_on_request(const char *name)
{
    static const char *const text = getenv("LS_EMU_FAIL");
    static const char *const colon = text ? strchr(text, ':') : nullptr;
    static long left = colon ? strtol(colon + 1, nullptr, 10) : 0;
    if (!colon || left <= 0 || strncmp(name, text, (size_t)(colon - text)) != 0 || name[colon - text]) return false;
    return !--left;
}

/* The result of a call before it does anything: a requested failure, a broken device. */
cudaError_t gate(const char *name)
{
    /* as with the driver: a forked child of a process that used it cannot use it */
    static const pid_t first = getpid();
    if (getpid() != first) return cudaErrorInitializationError;
    if (fails_on_request(name)) return cudaErrorUnknown;
    if (w().broken != cudaSuccess) return w().broken;
    auto f = w().to_fail.find(name);
    if (f == w().to_fail.end()) return cudaSuccess;
    if (f->second.second-- > 0) return cudaSuccess;
    const cudaError_t e = f->second.first;
    w().to_fail.erase(f);
    return e;
}

#define ENTER                                            \
    std::lock_guard<big_lock> hold(w().lock);            \
    do {                                                 \
        const cudaError_t at_gate = gate(__func__);      \
        if (at_gate != cudaSuccess) return say(at_gate); \
    } while (0)

} // namespace

struct emu_stream {
    std::deque<op> row;
    bool blocking = true, dying = false;  /* dying: destroyed with pending work */
    int device = 0, queue = 0, polls = 0; /* polls: its waiting kernels */
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id capturer;
    std::vector<op> captured;
};

struct emu_event {
    std::shared_ptr<event_state> state;
};

struct emu_graph {
    std::vector<op> row;
};

struct emu_graph_exec {
    std::shared_ptr<std::vector<op>> row;
};

namespace {

emu_stream *default_stream()
{
    static emu_stream *one = new emu_stream();
    return one;
}

bool good(emu_stream *&s)
{
    if (!s) s = default_stream();
    return s == default_stream() || (w().streams.count(s) && !s->dying);
}

/* ---- running ---- */

/* LS_EMU_PROTECT: device memory exists only while an operation runs. */
void open_memory(bool open)
{
    for (auto &m : w().device_memory)
        if (m.second.closed) mprotect((void *)m.first, m.second.nbytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

struct while_running {
    bool was = w().running;
    while_running()
    {
        if (!was) open_memory(true);
        w().running = true;
    }
    ~while_running()
    {
        w().running = was;
        if (!was) open_memory(false);
    }
};

bool step(emu_stream *s);

/* The stream whose turn it is in the hardware queue of this stream: that of the oldest operation (LS_EMU_QUEUES; 0: a queue for each). */
emu_stream *turn_of(emu_stream *s)
{
    if (setting("LS_EMU_QUEUES", 0) <= 0) return s;
    emu_stream *first = s;
    for (emu_stream *o : w().streams)
        if (o->queue == s->queue && !o->row.empty() && o->row.front().ticket < first->row.front().ticket) first = o;
    return first;
}

/* Until the record has run. */
bool step_record(const event_state &e, uint64_t turn)
{
    auto record = e.waiting.find(turn);
    return record != e.waiting.end() && step(record->second);
}

void pop(emu_stream *s)
{
    if (s->row.front().over) s->polls--;
    s->row.pop_front();
    if (!s->dying || !s->row.empty()) return;
    w().streams.erase(s);
    delete s;
}

void run_front(emu_stream *s)
{
    op o = std::move(s->row.front());
    pop(s);
    if (o.event) { /* a record */
        o.event->waiting.erase(o.turn);
        o.event->at = now();
        return;
    }
    if (w().broken != cudaSuccess) return;
    while_running open;
    o.run();
}

/* Runs one operation that this stream needs: its first one, or one that the first waits for. False: nothing can run now. */
bool step(emu_stream *s)
{
    if (s->row.empty()) return false;
    emu_stream *turn = turn_of(s);
    if (turn != s) return step(turn);
    op &o = s->row.front();
    if (o.event && !o.records) {
        std::shared_ptr<event_state> e = o.event;
        if (e->waiting.count(o.turn)) return step_record(*e, o.turn);
        pop(s);
        return true;
    }
    if (o.over) {
        int (*over)(void *) = o.over;
        void *arg = o.arg;
        if (w().broken == cudaSuccess) { /* otherwise nothing waits any more */
            while_running open;
            if (!over(arg)) return false;
        }
        pop(s);
        return true;
    }
    run_front(s);
    return true;
}

/* If nothing can run now, gives the lock to other threads and time to peers. */
struct patience {
    long ns = 10000;
    void wait()
    {
        w().lock.let_go(ns);
        if (ns < 500000) ns *= 2;
    }
    void progress() { ns = 10000; }
};

void run_until(std::shared_ptr<event_state> e, uint64_t turn) // NOLINT(performance-unnecessary-value-param): kept
{
    patience p;
    while (e->waiting.count(turn))
        if (step_record(*e, turn)) p.progress();
        else p.wait();
}

bool alive(emu_stream *s)
{
    return s == default_stream() || w().streams.count(s);
}

/* Until the operations that are pending now have run. */
void drain(emu_stream *s)
{
    patience p;
    const uint64_t last = s->row.empty() ? 0 : s->row.back().ticket;
    while (alive(s) && !s->row.empty() && s->row.front().ticket <= last)
        if (step(s)) p.progress();
        else p.wait();
}

void drain_all(bool blocking_only)
{
    drain(default_stream());
    const std::vector<emu_stream *> all(w().streams.begin(), w().streams.end());
    for (emu_stream *s : all)
        if (w().streams.count(s) && s->device == current_device && (s->blocking || !blocking_only)) drain(s);
}

/* Calls that may wait for everything the device runs, on request: LS_EMU_SYNC is a list of their names, or "all". */
void may_sync(const char *name)
{
    const char *list = getenv("LS_EMU_SYNC");
    if (!list || !*list || w().running) return;
    for (emu_stream *s : w().streams)
        if (s->capture != cudaStreamCaptureStatusNone) return;
    if (strcmp(list, "all") != 0 && !strstr(list, name)) return;
    drain_all(false);
}

/* Runs kernels that wait for other processes, and what is before them. */
void drive()
{
    w().lock.lock();
    for (;;) {
        bool any = false, moved = false;
        const std::vector<emu_stream *> all(w().streams.begin(), w().streams.end());
        for (emu_stream *s : all) {
            if (!w().streams.count(s) || !s->polls) continue;
            any = true;
            if (step(s)) moved = true;
        }
        if (!any) {
            std::unique_lock<big_lock> held(w().lock, std::adopt_lock);
            w().polled.wait(held);
            held.release();
        } else w().lock.let_go(moved ? 1 : 50000);
    }
}

cudaError_t put(emu_stream *s, op o)
{
    if (s->capture == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
    if (s->capture == cudaStreamCaptureStatusActive) {
        s->captured.push_back(std::move(o));
        return cudaSuccess;
    }
    if (s == default_stream())
        for (emu_stream *other : w().streams)
            if (other->blocking) drain(other);
    const size_t depth = (size_t)setting("LS_EMU_DEPTH", 0);
    for (patience p; depth && !w().running && s->row.size() >= depth;) // the caller waits until its stream has room
        if (step(s)) p.progress();
        else p.wait();
    o.ticket = ++w().tickets;
    if (o.over) s->polls++;
    s->row.push_back(std::move(o));
    while (setting("LS_EMU_EAGER", 0) && step(s)) continue;
    return cudaSuccess;
}

cudaError_t put_work(emu_stream *s, emu_body run)
{
    op o;
    o.run = std::move(run);
    return put(s, std::move(o));
}

/* A call that may not be made while this thread captures (or any does, in the global mode). It invalidates the capture. */
cudaError_t unsafe_now()
{
    for (emu_stream *s : w().streams) {
        if (s->capture != cudaStreamCaptureStatusActive || s->mode == cudaStreamCaptureModeRelaxed) continue;
        if (s->mode == cudaStreamCaptureModeThreadLocal && s->capturer != std::this_thread::get_id()) continue;
        s->capture = cudaStreamCaptureStatusInvalidated;
        return cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

/* ---- memory ---- */

/* The region that holds p, or end. */
std::map<uintptr_t, region>::iterator holder(std::map<uintptr_t, region> &in, const void *p)
{
    auto i = in.upper_bound((uintptr_t)p);
    if (i == in.begin()) return in.end();
    --i;
    return (uintptr_t)p < i->first + i->second.nbytes ? i : in.end();
}

bool on_device(const void *p)
{
    return holder(w().device_memory, p) != w().device_memory.end();
}

bool is_pinned(const void *p)
{
    return holder(w().pinned, p) != w().pinned.end();
}

/* Whether nbytes from p on are in one region, or are plain host memory. */
bool inside(const void *p, size_t nbytes)
{
    auto i = holder(w().device_memory, p);
    if (i == w().device_memory.end()) return p || !nbytes;
    return (uintptr_t)p + nbytes <= i->first + i->second.nbytes;
}

bool kind_fits(const void *dst, const void *src, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost: return !on_device(dst) && !on_device(src);
    case cudaMemcpyHostToDevice: return on_device(dst) && !on_device(src);
    case cudaMemcpyDeviceToHost: return !on_device(dst) && on_device(src);
    case cudaMemcpyDeviceToDevice: return on_device(dst) && on_device(src);
    case cudaMemcpyDefault: return true;
    }
    return false;
}

} // namespace

/* ---- errors, devices ---- */

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    default: return "cudaError (emulated)";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;
    std::lock_guard<big_lock> hold(w().lock);
    last_error = w().broken;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER;
    *n = (int)setting("LS_EMU_DEVICES", 1);
    return *n > 0 ? cudaSuccess : say(*n < 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    ENTER;
    if (device < 0 || device >= setting("LS_EMU_DEVICES", 1)) return say(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER;
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    ENTER;
    return cudaSuccess;
}

/* LS_EMU_GPU plays a card: its capability, and its memory as drivers report it (MiB). */
struct emu_card {
    const char *word, *name;
    int capability;
    long long memory;
};

static const emu_card &card(void)
{
    static const emu_card row[] = {{"", "emulated device", 90, 8192},
                                   {"k80", "Tesla K80", 37, 11441},
                                   {"v100", "Tesla V100-SXM2-16GB", 70, 16144},
                                   {"t4", "Tesla T4", 75, 14913},
                                   {"a100", "NVIDIA A100-SXM4-40GB", 80, 40326},
                                   {"l4", "NVIDIA L4", 89, 22478},
                                   {"h100", "NVIDIA H100 80GB HBM3", 90, 81079}};
    const char *word = getenv("LS_EMU_GPU");
    for (const emu_card &c : row)
        if (!strcmp(c.word, word ? word : "")) return c;
    fprintf(stderr, "emulated device: LS_EMU_GPU=%s is not known\n", word);
    abort();
}

int emu_capability(void)
{
    return card().capability;
}

static size_t card_shared(void)
{
    const ls_card *can = ls_card_of(emu_capability());
    return can ? (size_t)can->shared : 48 << 10;
}

void emu_needs(int arch, const char *instruction)
{
    if (emu_arch >= arch) return;
    emu_stop("%s does not exist in code for %d.%d (%s)", instruction, emu_arch / 10, emu_arch % 10, card().name);
}

cudaError_t emu_func_code(cudaFuncAttributes *a)
{
    const char *code = getenv("LS_EMU_CODE");
    a->ptxVersion = code && *code ? atoi(code) : emu_capability();
    a->binaryVersion = emu_capability();
    if (a->ptxVersion > 0 && a->ptxVersion <= emu_capability()) return cudaSuccess;
    return say(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    ENTER;
    if (device < 0 || device >= setting("LS_EMU_DEVICES", 1)) return say(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "%s", card().name);
    p->totalGlobalMem = (size_t)setting("LS_EMU_MEMORY", card().memory << 20);
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = card_shared();
    p->major = emu_capability() / 10;
    p->minor = emu_capability() % 10;
    p->multiProcessorCount = (int)setting("LS_EMU_PROCESSORS", 4);
    p->l2CacheSize = 1 << 20;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->canMapHostMemory = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device)
{
    cudaDeviceProp p;
    const cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess) return e;
    switch (what) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; return cudaSuccess;
    }
    return say(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER;
    const cudaError_t e = unsafe_now();
    if (e != cudaSuccess) return say(e);
    drain_all(false);
    return say(w().broken);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device)
{
    ENTER;
    if (device < 0 || device >= setting("LS_EMU_DEVICES", 1) || room < 13) return say(cudaErrorInvalidDevice);
    snprintf(text, (size_t)room, "0000:%02X:00.0", (unsigned)device & 255u);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v)
{
    ENTER;
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
    ENTER;
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *nfree, size_t *total)
{
    ENTER;
    *total = (size_t)setting("LS_EMU_MEMORY", card().memory << 20);
    const size_t used = w().used[current_device];
    *nfree = used < *total ? *total - used : 0;
    return cudaSuccess;
}

/* ---- memory ---- */

/* Memory of NaN bytes between pages that nobody may read. Its pages are those of one small file until they are written: workspaces are large, and
 * most of them are never used. NULL: not possible. */
static char *map_unwritten(size_t nbytes)
{
    static const size_t chunk = (size_t)4 << 20;
    static const int file = [] {
        const int fd = memfd_create("emulated device", MFD_CLOEXEC);
        const std::vector<char> ones(chunk, (char)0xff);
        return fd >= 0 && write(fd, ones.data(), chunk) == (ssize_t)chunk ? fd : -1;
    }();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (nbytes + page - 1) / page * page;
    char *at = (char *)mmap(nullptr, nbytes + 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    for (size_t i = 0; i < whole; i += chunk) {
        const size_t n = whole - i < chunk ? whole - i : chunk;
        if (mmap(at + page + i, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) ==
            MAP_FAILED) {
            munmap(at, nbytes + 3 * page);
            return nullptr;
        }
    }
    return at + page;
}

cudaError_t cudaMalloc(void **p, size_t nbytes)
{
    ENTER;
    const cudaError_t e = unsafe_now();
    if (e != cudaSuccess) return say(e);
    may_sync(__func__);
    const size_t total = (size_t)setting("LS_EMU_MEMORY", card().memory << 20), used = w().used[current_device];
    if (used > total || nbytes > total - used) return say(cudaErrorMemoryAllocation);
#ifdef __SANITIZE_ADDRESS__ /* which knows the exact end of what malloc returns */
    const size_t large = SIZE_MAX;
#else
    const size_t large = (size_t)1 << 20;
#endif
    const bool closed = setting("LS_EMU_PROTECT", 0) != 0, mapped = closed || nbytes >= large;
    void *m = nullptr;
    if (mapped) {
        m = map_unwritten(nbytes);
        if (!m) return say(cudaErrorMemoryAllocation);
        if (closed && !w().running) mprotect(m, nbytes, PROT_NONE);
    } else {
        if (posix_memalign(&m, 512, nbytes ? nbytes : 1) != 0) return say(cudaErrorMemoryAllocation);
        memset(m, 0xff, nbytes);
    }
    w().device_memory[(uintptr_t)m] = {nbytes ? nbytes : 1, current_device, mapped, closed};
    w().used[current_device] += nbytes;
    *p = m;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    ENTER;
    if (!p) return cudaSuccess;
    const cudaError_t e = unsafe_now();
    if (e != cudaSuccess) return say(e);
    auto i = w().device_memory.find((uintptr_t)p);
    if (i == w().device_memory.end()) return say(cudaErrorInvalidValue);
    drain_all(false);
    const region r = i->second;
    w().used[r.device] -= r.nbytes;
    w().device_memory.erase(i);
    if (r.mapped) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        munmap((char *)p - page, r.nbytes + 3 * page);
    } else free(p);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned)
{
    ENTER;
    may_sync(__func__);
    void *m = nullptr;
    if (posix_memalign(&m, 4096, nbytes ? nbytes : 1) != 0) return say(cudaErrorMemoryAllocation);
    memset(m, 0xff, nbytes);
    w().pinned[(uintptr_t)m] = {nbytes ? nbytes : 1, 0, true, false};
    *p = m;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t nbytes)
{
    return cudaHostAlloc(p, nbytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER;
    if (!p) return cudaSuccess;
    auto i = w().pinned.find((uintptr_t)p);
    if (i == w().pinned.end() || !i->second.mapped) return say(cudaErrorInvalidValue);
    drain_all(false);
    w().pinned.erase(i);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned)
{
    ENTER;
    if (!p || !nbytes) return say(cudaErrorInvalidValue);
    may_sync(__func__);
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)p / page * page;
    for (const auto &other : w().pinned) { /* whole pages are registered */
        const uintptr_t begin = other.first / page * page, end = other.first + other.second.nbytes;
        if (begin < (uintptr_t)p + nbytes && first < end) return say(cudaErrorHostMemoryAlreadyRegistered);
    }
    w().pinned[(uintptr_t)p] = {nbytes, 0, false, false};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    ENTER;
    auto i = w().pinned.find((uintptr_t)p);
    if (i == w().pinned.end() || i->second.mapped) return say(cudaErrorHostMemoryNotRegistered);
    drain_all(false);
    w().pinned.erase(i);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    ENTER;
    auto i = holder(w().device_memory, p);
    *a = cudaPointerAttributes();
    a->device = -1;
    if (i != w().device_memory.end()) {
        a->type = cudaMemoryTypeDevice;
        a->device = i->second.device;
        a->devicePointer = (void *)(uintptr_t)p;
    } else if (is_pinned(p)) {
        a->type = cudaMemoryTypeHost;
        a->device = 0;
        a->devicePointer = a->hostPointer = (void *)(uintptr_t)p;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (!nbytes) return cudaSuccess; /* nothing is queued, and the call does not wait */
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    if (!kind_fits(dst, src, kind) || !inside(dst, nbytes) || !inside(src, nbytes)) return say(cudaErrorInvalidValue);
    const bool captures = s->capture != cudaStreamCaptureStatusNone;
    /* Host memory that is not pinned: CUDA reads the source before it returns, and returns when the target is complete. */
    if (!captures && !on_device(src) && !is_pinned(src)) {
        std::vector<char> taken((const char *)src, (const char *)src + nbytes);
        const cudaError_t e = put_work(s, [dst, taken] { memcpy(dst, taken.data(), taken.size()); });
        if (!on_device(dst)) drain(s);
        return say(e);
    }
    const cudaError_t e = put_work(s, [dst, src, nbytes] { memmove(dst, src, nbytes); });
    if (!captures && !on_device(dst) && !is_pinned(dst)) drain(s);
    return say(e);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind)
{
    ENTER;
    cudaError_t e = unsafe_now();
    if (e == cudaSuccess) e = cudaMemcpyAsync(dst, src, nbytes, kind, nullptr);
    if (e == cudaSuccess) drain(default_stream());
    return say(e);
}

/* Whole pages become those of nobody, which read as zeros: a plan of many gigabytes is set up in little memory. */
static bool zero_pages(char *p, size_t nbytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (page - (uintptr_t)p % page) % page;
    if (nbytes < (size_t)1 << 20) return false;
    const size_t whole = (nbytes - before) / page * page;
    if (mmap(p + before, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
             0) == MAP_FAILED)
        return false;
    memset(p, 0, before);
    memset(p + before + whole, 0, nbytes - before - whole);
    return true;
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t nbytes, cudaStream_t s)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    if (!(on_device(p) || is_pinned(p)) || !inside(p, nbytes)) return say(cudaErrorInvalidValue);
    auto i = holder(w().device_memory, p);
    const bool pages = !byte && i != w().device_memory.end() && i->second.mapped && !i->second.closed;
    return say(put_work(s, [p, byte, nbytes, pages] {
        if (!pages || !zero_pages((char *)p, nbytes)) memset(p, byte, nbytes);
    }));
}

cudaError_t cudaMemset(void *p, int byte, size_t nbytes)
{
    ENTER;
    const cudaError_t e = unsafe_now();
    return e == cudaSuccess ? cudaMemsetAsync(p, byte, nbytes, nullptr) : say(e);
}

/* ---- launches ---- */

cudaError_t emu_func_attribute(const void *kernel, cudaFuncAttribute what, int value)
{
    std::lock_guard<big_lock> hold(w().lock);
    if (what == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > card_shared())
        return say(cudaErrorInvalidValue);
    w().shared_limit[kernel] = value;
    return cudaSuccess;
}

cudaError_t emu_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t smem, cudaStream_t s,
                       emu_body body) // NOLINT(performance-unnecessary-value-param): it is kept
{
    std::lock_guard<big_lock> hold(w().lock);
    const cudaError_t at_gate = gate("launch");
    if (at_gate != cudaSuccess) return say(at_gate);
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    const uint64_t n = (uint64_t)block.x * block.y * block.z;
    auto limit = w().shared_limit.find(kernel);
    if (!n || n > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 ||
        grid.x > 0x7fffffffu)
        return say(cudaErrorInvalidConfiguration);
    const bool asked = limit != w().shared_limit.end();
    const size_t room = asked ? card_shared() : 48 << 10;
    if (smem > (asked ? (size_t)limit->second : room)) return say(cudaErrorInvalidValue);
    w().launches++;
    if (w().loaded.insert(name).second) may_sync("launch"); /* its code is loaded now */
    return say(put_work(s, [=] { emu_run_grid(name, grid, block, smem, room, body); }));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    ENTER;
    emu_stream *made = new emu_stream();
    made->blocking = !(flags & cudaStreamNonBlocking);
    made->device = current_device;
    const int queues = (int)setting("LS_EMU_QUEUES", 0);
    made->queue = queues > 0 ? w().next_queue++ % queues : 0;
    w().streams.insert(made);
    *s = made;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithFlags(s, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(s, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    ENTER;
    if (!w().streams.count(s) || s->dying) return say(cudaErrorInvalidResourceHandle);
    while (!s->polls && step(s)) continue;
    s->dying = true; /* as in CUDA: returns at once; the pending operations still run */
    if (!s->row.empty()) return cudaSuccess;
    w().streams.erase(s);
    delete s;
    return cudaSuccess;
}

static cudaError_t not_while_capturing(emu_stream *s)
{
    if (s->capture == cudaStreamCaptureStatusNone) return cudaSuccess;
    s->capture = cudaStreamCaptureStatusInvalidated;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    const cudaError_t e = not_while_capturing(s);
    if (e != cudaSuccess) return say(e);
    drain(s);
    return say(w().broken);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    const cudaError_t e = not_while_capturing(s);
    if (e != cudaSuccess) return say(e);
    if (s->row.empty()) return cudaSuccess;
    (void)step(s);
    return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    ENTER;
    if (!good(s) || !w().events.count(e)) return say(cudaErrorInvalidResourceHandle);
    event_state &st = *e->state;
    if (st.captured)
        return s->capture == cudaStreamCaptureStatusActive ? cudaSuccess : say(cudaErrorStreamCaptureIsolation);
    if (s->capture ==
        cudaStreamCaptureStatusActive) { /* work that is not captured cannot be waited for by work that is */
        s->capture = cudaStreamCaptureStatusInvalidated;
        return say(cudaErrorStreamCaptureIsolation);
    }
    if (!st.issued) return cudaSuccess;
    op o;
    o.event = e->state;
    o.turn = st.issued;
    return say(put(s, std::move(o)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    return say(put_work(s, [fn, arg] { fn(arg); }));
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    ENTER;
    emu_event *made = new emu_event();
    made->state = std::make_shared<event_state>();
    made->state->timed = !(flags & cudaEventDisableTiming);
    w().events.insert(made);
    *e = made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    ENTER;
    if (!w().events.erase(e)) return say(cudaErrorInvalidResourceHandle);
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
    ENTER;
    if (!good(s) || !w().events.count(e)) return say(cudaErrorInvalidResourceHandle);
    std::shared_ptr<event_state> st = e->state;
    if (s->capture == cudaStreamCaptureStatusActive) {
        if (!(flags & cudaEventRecordExternal)) {
            st->captured = true;
            return cudaSuccess;
        }
        return say(cudaErrorNotSupported); /* not used by this project */
    }
    st->captured = false;
    op o;
    o.event = st;
    o.turn = ++st->issued;
    st->waiting[o.turn] = s;
    o.records = true;
    return say(put(s, std::move(o)));
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    return cudaEventRecordWithFlags(e, s, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER;
    if (!w().events.count(e)) return say(cudaErrorInvalidResourceHandle);
    if (e->state->captured) return say(cudaErrorCapturedEvent);
    run_until(e->state, e->state->issued);
    return say(w().broken);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    ENTER;
    if (!w().events.count(e)) return say(cudaErrorInvalidResourceHandle);
    if (e->state->captured) return say(cudaErrorCapturedEvent);
    if (e->state->passed()) return cudaSuccess;
    (void)step(e->state->waiting.rbegin()->second);
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER;
    if (!w().events.count(from) || !w().events.count(to)) return say(cudaErrorInvalidResourceHandle);
    event_state &a = *from->state, &b = *to->state;
    if (!a.timed || !b.timed || !a.issued || !b.issued) return say(cudaErrorInvalidResourceHandle);
    if (!a.passed() || !b.passed()) return cudaErrorNotReady;
    *ms = (float)((b.at - a.at) * 1e3);
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    if (s == default_stream()) return say(cudaErrorStreamCaptureUnsupported);
    if (s->capture != cudaStreamCaptureStatusNone) return say(cudaErrorInvalidValue);
    s->capture = cudaStreamCaptureStatusActive;
    s->mode = mode;
    s->capturer = std::this_thread::get_id();
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    if (s->capture == cudaStreamCaptureStatusNone) return say(cudaErrorStreamCaptureUnmatched);
    if (s->mode != cudaStreamCaptureModeRelaxed && s->capturer != std::this_thread::get_id())
        return say(cudaErrorStreamCaptureWrongThread);
    const bool spoiled = s->capture == cudaStreamCaptureStatusInvalidated;
    s->capture = cudaStreamCaptureStatusNone;
    *g = nullptr;
    if (spoiled) return say(cudaErrorStreamCaptureInvalidated);
    *g = new emu_graph();
    (*g)->row = std::move(s->captured);
    s->captured.clear();
    w().n_graph++;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    *status = s->capture;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    ENTER;
    may_sync(__func__);
    *x = new emu_graph_exec();
    (*x)->row = std::make_shared<std::vector<op>>(g->row);
    w().n_graph++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    w().graph_launches++;
    auto row = x->row;
    return say(put_work(s, [row] {
        for (const op &o : *row) o.run();
    }));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t s)
{
    ENTER;
    return good(s) ? cudaSuccess : say(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    ENTER;
    may_sync(__func__);
    w().n_graph--;
    delete x;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    ENTER;
    w().n_graph--;
    delete g;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, void **, size_t *n)
{
    ENTER;
    *n = g->row.size();
    return cudaSuccess;
}

/* ---- for libraries that put kernels of their own on streams ---- */

cudaError_t emu_stream_poll(cudaStream_t s, int (*over)(void *), void *arg)
{
    ENTER;
    if (!good(s)) return say(cudaErrorInvalidResourceHandle);
    if (s->capture != cudaStreamCaptureStatusNone) return say(cudaErrorStreamCaptureUnsupported);
    op o;
    o.over = over;
    o.arg = arg;
    const cudaError_t e = put(s, std::move(o));
    if (!w().driven) {
        w().driven = true;
        std::thread(drive).detach();
    }
    w().polled.notify_all();
    return say(e);
}

void emu_sync_point(const char *name)
{
    std::lock_guard<big_lock> hold(w().lock);
    may_sync(name);
}

int emu_holds(const void *p, size_t nbytes)
{
    std::lock_guard<big_lock> hold(w().lock);
    for (auto *kind : {&w().device_memory, &w().pinned}) {
        auto i = holder(*kind, p);
        if (i != kind->end()) return (uintptr_t)p + nbytes <= i->first + i->second.nbytes;
    }
    return 0;
}

/* ---- for tests ---- */

void emu_fail(const char *name, cudaError_t e, int after)
{
    std::lock_guard<big_lock> hold(w().lock);
    w().to_fail[name] = {e, after};
}

void emu_break(cudaError_t e)
{
    std::lock_guard<big_lock> hold(w().lock);
    w().broken = e;
    if (e == cudaSuccess) last_error = e;
}

emu_counts emu_count(void)
{
    std::lock_guard<big_lock> hold(w().lock);
    emu_counts c = {};
    c.allocations = (int)w().device_memory.size();
    c.pinned = (int)w().pinned.size();
    c.streams = (int)w().streams.size();
    c.events = (int)w().events.size();
    c.graphs = w().n_graph;
    c.launches = w().launches;
    c.graph_launches = w().graph_launches;
    for (emu_stream *s : w().streams) c.waiting += (int64_t)s->row.size();
    return c;
}
