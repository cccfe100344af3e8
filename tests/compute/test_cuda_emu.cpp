/* The emulated device itself (tests/fake_cuda): synchronization of threads and the message when it fails, lazy streams, graphs, memory; and the functions
 * that gpu.cuh provides to kernels. */
/* ls-test: long */
#include "compute/cuda/kernels/vec.cuh"
#include "compute/cuda/kernels/wgmma.cuh"
extern "C" {
#include "cmocka_all.h"
#include "core/rng.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <atomic>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define CU(call) assert_int_equal((int)(call), cudaSuccess)

/* ---- device and pinned arrays ---- */

template <class T> struct on_device {
    T *p;
    explicit on_device(size_t n) { CU(cudaMalloc((void **)&p, n * sizeof(T))); }
    ~on_device() { cudaFree(p); }
};
template <class T> struct on_host {
    T *p;
    explicit on_host(size_t n) { CU(cudaMallocHost((void **)&p, n * sizeof(T))); }
    ~on_host() { cudaFreeHost(p); }
    T &operator[](size_t i) { return p[i]; }
};
struct stream {
    cudaStream_t s;
    stream() { CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); }
    ~stream() { cudaStreamDestroy(s); }
    operator cudaStream_t() const { return s; }
};

template <class T> static std::vector<T> fetch(const T *p, size_t n, cudaStream_t s)
{
    std::vector<T> out(n);
    CU(cudaMemcpyAsync(out.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, s));
    CU(cudaStreamSynchronize(s));
    return out;
}

/* ---- barriers ---- */

static __global__ void turn_round(int *y, const int *x) /* 256 threads */
{
    LS_SHARED(int, tile, [256]);
    const int i = (int)threadIdx.x, at = (int)blockIdx.x * 256;
    for (int round = 0; round < 3; round++) {
        tile[i] = round ? y[at + i] : x[at + i];
        __syncthreads();
        y[at + i] = tile[255 - i] + 1;
        __syncthreads();
    }
}

static __global__ void votes(int *y)
{
    const int i = (int)threadIdx.x;
    const int count = __syncthreads_count(i % 3 == 0), any = __syncthreads_or(i == 70), all = __syncthreads_and(i < 96);
    const int none = __syncthreads_or(0), not_all = __syncthreads_and(i < 95);
    y[i] = count * 10000 + any * 1000 + all * 100 + none * 10 + not_all;
}

static void all_threads_meet_at_a_barrier(void **)
{
    stream s;
    on_device<int> x(512), y(512);
    on_host<int> h(512);
    for (int i = 0; i < 512; i++) h[(size_t)i] = i;
    CU(cudaMemcpyAsync(x.p, h.p, 512 * sizeof(int), cudaMemcpyHostToDevice, s));
    CU(LS_LAUNCH(turn_round, 2, 256, 0, s, y.p, x.p));
    auto got = fetch(y.p, 512, s);
    for (int i = 0; i < 512; i++) assert_int_equal(got[(size_t)i], i / 256 * 256 + 255 - i % 256 + 3);
    CU(LS_LAUNCH(votes, 1, 96, 0, s, y.p));
    got = fetch(y.p, 96, s);
    for (int i = 0; i < 96; i++) assert_int_equal(got[(size_t)i], 32 * 10000 + 1100);
}

/* ---- warps ---- */

static __global__ void shuffles(int *y)
{
    const int lane = (int)threadIdx.x & 31, v = 100 + lane;
    int *out = y + threadIdx.x * 10;
    out[0] = __shfl_sync(0xffffffffu, v, 7);
    out[1] = __shfl_xor_sync(0xffffffffu, v, 5);
    out[2] = __shfl_up_sync(0xffffffffu, v, 3);
    out[3] = __shfl_down_sync(0xffffffffu, v, 3);
    out[4] = __shfl_sync(0xffffffffu, v, 1, 8);
    out[5] = (int)__ballot_sync(0xffffffffu, lane % 2);
    out[6] = __reduce_add_sync(0xffffffffu, v);
    /* each half of a warp separately, a different number of times */
    int sum = v;
    const unsigned mask = lane < 16 ? 0xffffu : 0xffff0000u;
    for (int k = 0; k < (lane < 16 ? 3 : 7); k++) sum = __shfl_xor_sync(mask, sum, 1) + 1;
    __syncwarp();
    out[7] = sum;
    out[8] = __any_sync(mask, lane == 20);
    out[9] = __all_sync(0xffffffffu, lane < 32);
}

/* over all threads of a block of whole warps; every thread gets the sum */
template <class T> static __device__ T block_sum(T x)
{
    LS_SHARED(T, part, [32]);
    const int lane = lane_id(), warp = warp_id(), n_warp = (int)(blockDim.x >> 5);
    x = warp_sum(x);
    __syncthreads(); /* the previous call has been read by all threads */
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_sum(lane < n_warp ? part[lane] : (T)0);
}

template <class T> static __device__ T block_max(T x)
{
    LS_SHARED(T, part, [32]);
    const int lane = lane_id(), warp = warp_id(), n_warp = (int)(blockDim.x >> 5);
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_max(part[lane < n_warp ? lane : 0]);
}

static __global__ void sums(float *y, const float *x)
{
    const float s = block_sum(x[blockIdx.x * blockDim.x + threadIdx.x]), m = block_max(x[threadIdx.x]);
    const double d = block_sum((double)threadIdx.x);
    y[(blockIdx.x * blockDim.x + threadIdx.x) * 3] = s;
    y[(blockIdx.x * blockDim.x + threadIdx.x) * 3 + 1] = m;
    y[(blockIdx.x * blockDim.x + threadIdx.x) * 3 + 2] = (float)d;
}

static void warp_functions_match_their_definition(void **)
{
    stream s;
    on_device<int> y(640);
    CU(LS_LAUNCH(shuffles, 1, 64, 0, s, y.p));
    auto got = fetch(y.p, 640, s);
    for (int i = 0; i < 64; i++) {
        const int *o = &got[(size_t)i * 10], lane = i % 32;
        assert_int_equal(o[0], 107);
        assert_int_equal(o[1], 100 + (lane ^ 5));
        assert_int_equal(o[2], 100 + (lane < 3 ? lane : lane - 3));
        assert_int_equal(o[3], 100 + (lane > 28 ? lane : lane + 3));
        assert_int_equal(o[4], 100 + lane / 8 * 8 + 1);
        assert_int_equal((unsigned)o[5], 0xaaaaaaaau);
        assert_int_equal(o[6], 32 * 100 + 31 * 16);
        assert_int_equal(o[7], 100 + (lane ^ 1) + (lane < 16 ? 3 : 7));
        assert_int_equal(o[8], lane >= 16);
        assert_int_equal(o[9], 1);
    }
}

static void block_sums_do_not_depend_on_order(void **)
{
    stream s;
    on_device<float> x(192), y(576);
    on_host<float> h(192);
    double want = 0;
    for (uint64_t i = 0; i < 192; i++) {
        h[i] = (float)ls_rng_normal(3, i);
        want += i < 96 ? (double)h[i] : 0;
    }
    CU(cudaMemcpyAsync(x.p, h.p, 192 * sizeof(float), cudaMemcpyHostToDevice, s));
    std::vector<float> first;
    for (int order = 0; order < 4; order++) {
        char text[16];
        snprintf(text, sizeof text, "%d", order);
        if (order) setenv("LS_EMU_ORDER", text, 1);
        CU(LS_LAUNCH(sums, 2, 96, 0, s, y.p, x.p));
        auto got = fetch(y.p, 576, s);
        if (!order) first = got;
        assert_memory_equal(got.data(), first.data(), 576 * sizeof(float));
        for (int i = 1; i < 96; i++) assert_true(got[(size_t)i * 3] == got[0]);
        assert_true(fabs(got[0] - want) < 1e-4 && got[2] == 96 * 95 / 2);
    }
    unsetenv("LS_EMU_ORDER");
}

/* ---- numbers ---- */

static void sixteen_bit_numbers_round_to_nearest_even(void **)
{
    for (uint32_t u = 0; u < 65536; u++) {
        const float f = emu_of_half((uint16_t)u), g = emu_of_bf16((uint16_t)u);
        if (f == f) assert_int_equal(emu_to_half(f), u);
        if (g == g) assert_int_equal(emu_to_bf16(g), u);
    }
    /* exactly between two values: to the even one; otherwise: to the nearer one */
    for (uint32_t u = 0; u < 0x7bff; u++) {
        const float a = emu_of_half((uint16_t)u), b = emu_of_half((uint16_t)(u + 1)), mid = (a + b) / 2;
        assert_int_equal(emu_to_half(mid), u & 1 ? u + 1 : u);
        assert_int_equal(emu_to_half(nextafterf(mid, 0)), u);
        assert_int_equal(emu_to_half(nextafterf(mid, 1e6f)), u + 1);
    }
    assert_int_equal(emu_to_half(65519.99f), 0x7bff);
    assert_int_equal(emu_to_half(65520.0f), 0x7c00);
    assert_int_equal(emu_to_half(-1e-9f), 0x8000);
    assert_int_equal(emu_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: even below  */
    assert_int_equal(emu_to_bf16(1.01171875f), 0x3f82); /* 1 + 3*2^-8: even above */
    assert_int_equal(emu_to_bf16(3.4e38f), 0x7f80);
    assert_true(emu_of_bf16(emu_to_bf16(NAN)) != emu_of_bf16(emu_to_bf16(NAN)));
}

static __global__ void masks(unsigned *y, drop_arg d)
{
    const uint64_t key = drop_key(d);
    y[threadIdx.x] = drop_factor(d, key, threadIdx.x) == d.scale;
}

static void dropout_masks_match_the_cpu(void **)
{
    stream s;
    on_device<unsigned> y(256);
    on_device<ls_pass_head> head(1);
    on_host<ls_pass_head> h(1);
    ls_drop d = {};
    d.p = 0.3f;
    d.at = head.p;
    d.unit = 4;
    d.site = 2;
    const uint32_t edge = (uint32_t)ceil((double)d.p * 4294967296.0);
    CU(LS_LAUNCH(masks, 1, 256, 0, s, y.p,
                 drop_of(d))); /* before the key is written: it must be read when the kernel runs */
    for (uint64_t seed = 5; seed < 7; seed++) {
        h[0].drop_key = seed;
        CU(cudaMemcpyAsync(head.p, h.p, sizeof(ls_pass_head), cudaMemcpyHostToDevice, s));
        CU(LS_LAUNCH(masks, 1, 256, 0, s, y.p, drop_of(d)));
        auto got = fetch(y.p, 256, s);
        const uint64_t key = ls_rng_key(seed, LS_RNG_DROPOUT, 4, 2);
        for (uint32_t i = 0; i < 256; i++) assert_int_equal(got[i], ls_rng_u32(key, i) >= edge);
    }
}

/* ---- kernels that must fail ---- */

struct ended {
    int status;
    std::string text; /* stderr */
};

/* Runs a kernel that must fail, by name, in a new process: a forked child of a process that used the device cannot use it. */
static ended apart(const char *name)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        execl("/proc/self/exe", "cuda_emu", name, (char *)nullptr);
        _exit(0);
    }
    close(ends[1]);
    ended e = {};
    char text[4096];
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;) e.text.append(text, (size_t)n);
    close(ends[0]);
    waitpid(pid, &e.status, 0);
    return e;
}

static void check_failure(const ended &e, const char *part)
{
    if (e.text.find(part) == std::string::npos) fail_msg("\"%s\" is not in:\n%s", part, e.text.c_str());
    assert_true(WIFSIGNALED(e.status) || (WIFEXITED(e.status) && WEXITSTATUS(e.status) != 0));
}

static __global__ void some_leave()
{
    if (threadIdx.x < 40 || blockIdx.x == 0) return;
    __syncthreads();
}
static __global__ void two_places()
{
    if (threadIdx.x < 32) __syncthreads();
    else emu_barrier(2, 64, false);
}
static __global__ void half_a_warp()
{
    if (threadIdx.x < 16) __shfl_xor_sync(0xffffffffu, 1, 1);
}
static __global__ void two_collectives()
{
    if (threadIdx.x % 2) __syncwarp();
    else __shfl_xor_sync(0xffffffffu, 1, 1);
}
static __global__ void askew(float *x)
{
    vec_load<4>(x + 1);
}

static __global__ void too_new()
{
    float d[4] = {};
    const uint32_t a[4] = {}, b[2] = {};
    mma16(d, a, b, f16());
}

template <class... P, class... A> static void launch_and_wait(void (*k)(P...), unsigned grid, unsigned block, A... a)
{
    ls_launch("the_kernel", k, grid, block, 0, nullptr, a...);
    cudaDeviceSynchronize();
}

static void a_wrong_kernel_is_stopped_with_a_message(void **)
{
    ended e = apart("some_leave");
    check_failure(e, "kernel the_kernel, block (1,0,0)");
    check_failure(e, "deadlock: not all threads reach");
    check_failure(e, "threads 0 to 39: has ended");
    check_failure(e, "threads 40 to 63: waits at barrier 0 of the block");
    e = apart("two_places");
    check_failure(e, "threads 0 to 31: waits at barrier 0 of the block");
    check_failure(e, "threads 32 to 63: waits at barrier 2 of the block");
    e = apart("half_a_warp");
    check_failure(e, "threads 0 to 15: waits in __shfl_xor_sync");
    e = apart("two_collectives");
    check_failure(e, "comes to __syncwarp (1 bytes) with mask ffffffff, others of its warp wait in __shfl_xor_sync");
    e = apart("askew");
    check_failure(e, "is not aligned to 16 bytes");
    setenv("LS_EMU_GPU", "t4", 1);
    e = apart("too_new");
    unsetenv("LS_EMU_GPU");
    check_failure(e, "mma.m16n8k16 f16 does not exist in code for 7.5 (Tesla T4)");
}

static __global__ void racy(int *y)
{
    LS_SHARED(int, word, [1]);
    word[0] = (int)threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) y[0] = word[0];
}

static void a_shuffled_order_reveals_races(void **)
{
    stream s;
    on_device<int> y(1);
    int last = -1, differ = 0;
    for (int order = 1; order < 9; order++) {
        char text[16];
        snprintf(text, sizeof text, "%d", order);
        setenv("LS_EMU_ORDER", text, 1);
        CU(LS_LAUNCH(racy, 1, 128, 0, s, y.p));
        const int got = fetch(y.p, 1, s)[0];
        differ += last >= 0 && got != last;
        last = got;
    }
    unsetenv("LS_EMU_ORDER");
    assert_true(differ > 0);
}

static __global__ void unwritten(float *y)
{
    LS_SHARED(float, x, [4]);
    float *more = LS_SHARED_DYNAMIC(float);
    if (threadIdx.x) return;
    y[0] = x[2];
    y[1] = more[3];
    x[2] = more[3] = 1;
}

static __global__ void early_read(float *y, const float *x)
{
    LS_SHARED(float, to, [8]);
    if (threadIdx.x) return;
    cp_async16(to, x);
    cp_async_commit();
    cp_async16(to + 4, x + 4, false);
    cp_async_commit();
    y[0] = to[1]; /* the copy has not arrived */
    cp_async_wait<1>();
    y[1] = to[1];
    y[2] = to[5];
    cp_async_wait<0>();
    y[3] = to[5];
}

static void unwritten_memory_reads_as_nan(void **)
{
    stream s;
    on_device<float> y(4), x(8);
    CU(LS_LAUNCH(unwritten, 2, 32, 16, s, y.p)); /* the second block does not see what the first wrote */
    auto got = fetch(y.p, 2, s);
    assert_true(got[0] != got[0] && got[1] != got[1]);
    assert_true(fetch(x.p, 1, s)[0] != fetch(x.p, 1, s)[0]);
    CU(cudaMemsetAsync(x.p, 0, 8 * sizeof(float), s));
    CU(LS_LAUNCH(early_read, 1, 32, 0, s, y.p, x.p));
    got = fetch(y.p, 4, s);
    assert_true(got[0] != got[0] && got[1] == 0 && got[2] != got[2] && got[3] == 0);
}

/* ---- Hopper: copies of tiles, products by warpgroups ---- */

enum mistake {
    NONE,
    NO_FENCE,
    EARLY_READ,
    EARLY_PRODUCT,
    EARLY_LOAD,
    OTHER_PRODUCT,
    OTHER_BYTES,
    NO_WAIT,
    CHANGED_A,
    CHANGED_SUMS,
    NO_BARRIER
};

/* d = a b' of two matrices (64,64), and e = a's first 16 columns times b's first 16 rows; 128 threads. */
static __global__ void tile_products(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                                     float *d, float *e, int wrong)
{
    char *mem = LS_SHARED_DYNAMIC(char);
    const saddr at = shared_address(mem), bar = at + 2 * WG_TILE;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    if (threadIdx.x == 0) {
        if (wrong != NO_BARRIER) mbar_init(bar, 1);
        mbar_init_fence();
        mbar_arrive_expect(bar, wrong == OTHER_BYTES ? WG_TILE : 2 * WG_TILE);
        tile_load(at, &a, 0, 0, 0, bar);
        tile_load(at + WG_TILE, &b, 0, 0, 0, bar);
    }
    __syncthreads();
    if (wrong != EARLY_PRODUCT) mbar_wait(bar, 0);
    float x[8][4], y[8][4];
    uint32_t half[4];
    for (int i = 0; i < 4; i++) { /* A's registers: row g or g+8, columns 2t, 2t+1 or 8 more */
        const int row = warp * 16 + lane / 4 + (i & 1) * 8, chunk = i / 2;
        memcpy(&half[i], mem + row * 128 + ((chunk ^ (row & 7)) << 4) + lane % 4 * 4, 4);
    }
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) y[n][i] = 0;
    const uint64_t left = wgmma_operand(at), right = wgmma_operand(at + WG_TILE);
    if (wrong != NO_FENCE) wgmma_fence();
    wgmma_tiles<bf16, false>(x, left, right);
    for (unsigned c = 1; c < 4; c++)
        wgmma_tiles<bf16, true>(x, left + c * WG_CHUNK,
                                right + (wrong == OTHER_PRODUCT && warp == 1 ? 0 : c * WG_CHUNK));
    wgmma_commit();
    wgmma_registers<bf16>(y, half, right);
    wgmma_commit();
    if (wrong == EARLY_LOAD) {
        __syncthreads();
        if (threadIdx.x == 0) mbar_arrive_expect(bar, WG_TILE), tile_load(at, &b, 0, 0, 0, bar);
        __syncthreads();
    }
    if (wrong == CHANGED_A) half[2]++;
    if (wrong == CHANGED_SUMS) y[3][1] = 1;
    if (wrong == EARLY_PRODUCT) mbar_wait(bar, 0);
    if (wrong != NO_WAIT) wgmma_wait<1>(x);
    if (wrong != NO_WAIT && wrong != EARLY_READ) wgmma_wait<0>(y);
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) {
            const int to = (warp * 16 + lane / 4 + i / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + i % 2;
            d[to] = x[n][i], e[to] = y[n][i];
        }
    if (wrong == EARLY_READ) wgmma_wait<0>(y);
}

/* a: 64 rows, b: 40 rows and 24 of 0. */
struct tiles {
    enum { ROWS_B = 40, SHARED = 2 * WG_TILE + 8 };
    on_device<bf16> a{64 * 64}, b{ROWS_B * 64};
    on_device<float> d{64 * 64}, e{64 * 64};
    std::vector<double> A, B;
    tensor_map maps[2];
    explicit tiles(cudaStream_t s) : A(64 * 64), B(64 * 64)
    {
        std::vector<bf16> x(64 * 64), y(ROWS_B * 64);
        for (size_t i = 0; i < x.size(); i++)
            x[i] = from_float<bf16>((float)(ls_rng_u32(1, (uint32_t)i) % 17) - 8), A[i] = (double)to_float(x[i]);
        for (size_t i = 0; i < y.size(); i++)
            y[i] = from_float<bf16>((float)(ls_rng_u32(2, (uint32_t)i) % 17) - 8), B[i] = (double)to_float(y[i]);
        CU(cudaMemcpyAsync(a.p, x.data(), x.size() * 2, cudaMemcpyHostToDevice, s));
        CU(cudaMemcpyAsync(b.p, y.data(), y.size() * 2, cudaMemcpyHostToDevice, s));
        CU(cudaStreamSynchronize(s));
        CU(tensor_map_rows(&maps[0], a.p, 64, 64, 64, 1));
        CU(tensor_map_rows(&maps[1], b.p, 64, 64, ROWS_B, 1));
    }
    void run(int wrong, cudaStream_t s)
    {
        CU(LS_LAUNCH(tile_products, 1, 128, SHARED, s, maps[0], maps[1], d.p, e.p, wrong));
    }
};

static void products_of_tiles_match_plain_loops(void **)
{
    stream s;
    tiles t(s);
    for (int order = 0; order < 3; order++) {
        char text[16];
        snprintf(text, sizeof text, "%d", order * 5);
        if (order) setenv("LS_EMU_ORDER", text, 1);
        t.run(NONE, s);
        const auto d = fetch(t.d.p, 64 * 64, s), e = fetch(t.e.p, 64 * 64, s);
        for (size_t r = 0; r < 64; r++)
            for (size_t c = 0; c < 64; c++) {
                double x = 0, y = 0;
                for (size_t k = 0; k < 64; k++) x += t.A[r * 64 + k] * t.B[c * 64 + k];
                for (size_t k = 0; k < 16; k++) y += t.A[r * 64 + k] * t.B[k * 64 + c];
                assert_true((double)d[r * 64 + c] == x && (double)e[r * 64 + c] == y);
            }
    }
    unsetenv("LS_EMU_ORDER");
    assert_int_equal(tensor_map_rows(&t.maps[0], (char *)t.a.p + 2, 64, 64, 64, 1), cudaErrorInvalidValue);
}

static void wrong_products_of_tiles_are_found(void **)
{
    stream s;
    tiles t(s);
    t.run(EARLY_READ, s);
    const float early = fetch(t.e.p, 1, s)[0];
    assert_true(early != early);
    static const char *const words[][2] = {{"tiles 1", "without wgmma_fence"},
                                           {"tiles 3", "changed before wgmma_wait"},
                                           {"tiles 4", "changed before wgmma_wait"},
                                           {"tiles 5", "is another one in other threads"},
                                           {"tiles 6", "expects 8192 bytes, but copies have 16384"},
                                           {"tiles 7", "ends with products in flight"},
                                           {"tiles 8", "registers of A of product 4 changed"},
                                           {"tiles 9", "sums changed before wgmma_wait"},
                                           {"tiles 10", "mbar_init was not called"}};
    for (const auto &w : words) check_failure(apart(w[0]), w[1]);
}

static void invalid_launches_are_refused(void **)
{
    stream s;
    on_device<float> y(4);
    assert_int_equal(LS_LAUNCH(unwritten, 1, 1056, 16, s, y.p), cudaErrorInvalidConfiguration);
    assert_int_equal(LS_LAUNCH(unwritten, dim3(1, 70000), 32, 16, s, y.p), cudaErrorInvalidConfiguration);
    assert_int_equal(LS_LAUNCH(unwritten, 0, 32, 16, s, y.p), cudaErrorInvalidConfiguration);
    assert_int_equal(LS_LAUNCH(unwritten, 1, 32, 50 << 10, s, y.p), cudaErrorInvalidValue);
    CU(LS_ALLOW_SHARED(unwritten, 50 << 10));
    CU(LS_LAUNCH(unwritten, 1, 32, 50 << 10, s, y.p));
    assert_int_equal(LS_ALLOW_SHARED(unwritten, 228 << 10), cudaErrorInvalidValue);
    CU(cudaStreamSynchronize(s));
    cudaGetLastError();
}

/* ---- streams ---- */

static __global__ void put(int *y, int v)
{
    if (threadIdx.x == 0) *y = v;
}
static __global__ void add_to(int *y, const int *x)
{
    if (threadIdx.x == 0) *y += *x;
}

static void a_stream_runs_only_when_waited_for(void **)
{
    stream a, b;
    cudaEvent_t e;
    CU(cudaEventCreate(&e));
    on_device<int> x(1);
    on_host<int> h(2);
    h[0] = 1;
    CU(LS_LAUNCH(put, 1, 32, 0, a, x.p, 7));
    CU(cudaMemcpyAsync(&h[0], x.p, sizeof(int), cudaMemcpyDeviceToHost, a));
    assert_int_equal(h[0], 1); /* no call has waited yet */
    CU(cudaEventRecord(e, a));
    CU(cudaStreamWaitEvent(b, e, 0));
    CU(cudaMemcpyAsync(&h[1], &h[0], sizeof(int), cudaMemcpyHostToHost, b));
    /* recorded again in another stream: an earlier wait is for the first record */
    CU(cudaEventRecord(e, b));
    CU(cudaStreamSynchronize(b));
    assert_int_equal(h[1], 7);
    assert_int_equal(h[0], 7);
    CU(cudaEventSynchronize(e));
    /* each query runs one operation */
    for (int i = 0; i < 3; i++) CU(LS_LAUNCH(put, 1, 32, 0, a, x.p, i));
    CU(cudaEventRecord(e, a));
    int asked = 0;
    while (cudaEventQuery(e) == cudaErrorNotReady) asked++;
    assert_int_equal(asked, 4);
    /* without a wait the other stream may be first */
    CU(LS_LAUNCH(put, 1, 32, 0, a, x.p, 50));
    CU(cudaMemcpyAsync(&h[0], x.p, sizeof(int), cudaMemcpyDeviceToHost, b));
    CU(cudaStreamSynchronize(b));
    assert_int_equal(h[0], 2);
    CU(cudaStreamSynchronize(a));
    cudaEvent_t f;
    CU(cudaEventCreate(&f));
    CU(cudaEventRecord(f, a));
    float ms = -1;
    assert_int_equal(cudaEventElapsedTime(&ms, e, f), cudaErrorNotReady);
    CU(cudaEventSynchronize(f));
    CU(cudaEventElapsedTime(&ms, e, f));
    assert_true(ms >= 0);
    CU(cudaEventDestroy(e));
    CU(cudaEventDestroy(f));
    assert_int_equal(emu_count().events, 0);
}

static void a_captured_graph_can_be_launched_again(void **)
{
    stream s;
    on_device<int> x(2);
    CU(cudaMemsetAsync(x.p, 0, 2 * sizeof(int), s));
    CU(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    int v = 3;
    CU(LS_LAUNCH(put, 1, 32, 0, s, x.p, v));
    CU(LS_LAUNCH(add_to, 1, 32, 0, s, x.p + 1, x.p));
    v = 4; /* taken by value */
    cudaGraph_t g;
    cudaGraphExec_t run;
    size_t n = 0;
    CU(cudaStreamEndCapture(s, &g));
    CU(cudaGraphGetNodes(g, nullptr, &n));
    assert_int_equal(n, 2);
    CU(cudaGraphInstantiateWithFlags(&run, g, 0));
    CU(cudaGraphDestroy(g));
    assert_int_equal(fetch(x.p, 1, s)[0], 0); /* a capture runs nothing */
    for (int i = 1; i < 4; i++) {
        CU(cudaGraphLaunch(run, s));
        assert_int_equal(fetch(x.p + 1, 1, s)[0], 3 * i);
    }
    CU(cudaGraphExecDestroy(run));
    assert_int_equal(emu_count().graphs, 0);
    /* waiting during a capture invalidates it */
    CU(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CU(LS_LAUNCH(put, 1, 32, 0, s, x.p, v));
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(LS_LAUNCH(put, 1, 32, 0, s, x.p, v), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    CU(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    void *p;
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    CU(LS_LAUNCH(put, 1, 32, 0, s, x.p, 9)); /* afterwards the stream is usable again */
    assert_int_equal(fetch(x.p, 1, s)[0], 9);
}

/* ---- memory and faults ---- */

static void memory_is_limited_and_checked(void **)
{
    setenv("LS_EMU_MEMORY", "1000000", 1);
    void *p, *q;
    size_t left, total;
    CU(cudaMalloc(&p, 600000));
    assert_int_equal(cudaMalloc(&q, 600000), cudaErrorMemoryAllocation);
    CU(cudaMemGetInfo(&left, &total));
    assert_int_equal(left, 400000);
    int plain = 0;
    cudaPointerAttributes a;
    CU(cudaPointerGetAttributes(&a, (char *)p + 599999));
    assert_int_equal(a.type, cudaMemoryTypeDevice);
    CU(cudaPointerGetAttributes(&a, &plain));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    assert_int_equal(cudaMemcpy((char *)p + 599998, &plain, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(p, &plain, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaFree((char *)p + 1), cudaErrorInvalidValue);
    CU(cudaHostRegister(&plain, sizeof plain, 0));
    assert_int_equal(cudaHostRegister(&plain, sizeof plain, 0), cudaErrorHostMemoryAlreadyRegistered);
    CU(cudaHostUnregister(&plain));
    CU(cudaFree(p));
    unsetenv("LS_EMU_MEMORY");
    assert_int_equal(emu_count().allocations, 0);
    /* the host writes to device memory */
    const ended e = apart("touch");
    check_failure(e, "so far");
}

static void injected_faults_are_returned(void **)
{
    void *p;
    emu_fail("cudaMalloc", cudaErrorMemoryAllocation, 1);
    CU(cudaMalloc(&p, 8));
    CU(cudaFree(p));
    assert_int_equal(cudaMalloc(&p, 8), cudaErrorMemoryAllocation);
    CU(cudaMalloc(&p, 8));
    stream s;
    CU(LS_LAUNCH(put, 1, 32, 0, s, (int *)p, 1));
    emu_break(cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    assert_int_equal(LS_LAUNCH(put, 1, 32, 0, s, (int *)p, 1), cudaErrorIllegalAddress);
    emu_break(cudaSuccess);
    CU(cudaFree(p));
    setenv("LS_EMU_DEVICES", "0", 1);
    int n = -1;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    unsetenv("LS_EMU_DEVICES");
    cudaGetLastError();
    CU(cudaGetLastError());
}

static void touch()
{
    setenv("LS_EMU_PROTECT", "1", 1);
    int *x, back = 0;
    cudaMalloc((void **)&x, 100);
    launch_and_wait(put, 1, 32, x, 5);
    if (cudaMemcpy(&back, x, 4, cudaMemcpyDeviceToHost) != cudaSuccess || back != 5) return;
    fprintf(stderr, "so far\n");
    *(volatile int *)x = 1;
}

/* ---- kernels that wait for other processes ---- */

static std::atomic<int> peer_came, asked;

static int wait_for_peer(void *)
{
    asked++;
    return peer_came;
}

static std::thread peer_after(int ms)
{
    return std::thread([ms] {
        usleep((useconds_t)ms * 1000);
        peer_came = 1;
    });
}

/* A waiting kernel blocks its stream, but not the host, other streams or their events. The operations before it, also those of another stream that its
 * stream waits for, run although no call waits. */
static void a_waiting_kernel_blocks_only_its_stream(void **)
{
    stream s, other;
    on_host<int> x(2);
    cudaEvent_t ready, after, beside;
    x[0] = x[1] = 0;
    peer_came = asked = 0;
    CU(cudaEventCreate(&ready));
    CU(cudaEventCreate(&after));
    CU(cudaEventCreate(&beside));
    CU(cudaMemsetAsync(&x[0], 1, 4, other));
    CU(cudaEventRecord(ready, other));
    CU(cudaStreamWaitEvent(s, ready, 0));
    CU(emu_stream_poll(s, wait_for_peer, nullptr));
    CU(cudaMemsetAsync(&x[1], 1, 4, s));
    CU(cudaEventRecord(after, s));
    for (int k = 0; k < 2000 && asked < 3; k++) usleep(1000);
    assert_true(asked >= 3); /* no call waited */
    assert_int_equal(x[0], 0x01010101);
    CU(cudaMemsetAsync(&x[0], 2, 4, other));
    CU(cudaEventRecord(beside, other));
    CU(cudaEventSynchronize(beside));
    assert_int_equal(x[0], 0x02020202);
    for (int k = 0; k < 5; k++) assert_int_equal((int)cudaEventQuery(after), cudaErrorNotReady);
    assert_int_equal(x[1], 0);
    std::thread peer = peer_after(50);
    CU(cudaEventSynchronize(after)); /* does not block the emulator while it waits */
    peer.join();
    assert_int_equal(x[1], 0x01010101);
    for (cudaEvent_t e : {ready, after, beside}) CU(cudaEventDestroy(e));
}

/* Whether `call` returns only after the peer has arrived. */
template <class F> static bool waits_for_peer(F call)
{
    stream s;
    bool before = false;
    peer_came = 0;
    CU(emu_stream_poll(s, wait_for_peer, nullptr));
    std::thread peer = peer_after(60);
    call();
    before = !peer_came;
    peer.join();
    CU(cudaStreamSynchronize(s));
    return !before;
}

static void freeing_waits_for_the_whole_device(void **)
{
    void *p = nullptr, *host = nullptr;
    CU(cudaMalloc(&p, 64));
    CU(cudaMallocHost(&host, 64));
    assert_true(waits_for_peer([] { CU(cudaDeviceSynchronize()); }));
    assert_true(waits_for_peer([p] { CU(cudaFree(p)); }));
    assert_true(waits_for_peer([host] { CU(cudaFreeHost(host)); }));
    assert_false(waits_for_peer([&p] { CU(cudaMalloc(&p, 64)); }));
    setenv("LS_EMU_SYNC", "cudaMalloc,launch", 1);
    assert_true(waits_for_peer([&host] { CU(cudaMalloc(&host, 64)); }));
    unsetenv("LS_EMU_SYNC");
    CU(cudaFree(p));
    CU(cudaFree(host));
}

/* Streams that share a hardware queue: later operations wait for the waiting kernel, in whichever stream they are. */
static void streams_of_one_queue_wait_for_each_other(void **)
{
    for (int queues = 1; queues <= 2; queues++) {
        setenv("LS_EMU_QUEUES", queues == 1 ? "1" : "2", 1);
        {
            stream a, b;
            on_host<int> x(1);
            cudaEvent_t e;
            x[0] = 0;
            peer_came = 0;
            CU(cudaEventCreate(&e));
            CU(emu_stream_poll(a, wait_for_peer, nullptr));
            CU(cudaMemsetAsync(&x[0], 1, 4, b));
            CU(cudaEventRecord(e, b));
            for (int k = 0; k < 5; k++) (void)cudaEventQuery(e);
            assert_int_equal((int)cudaEventQuery(e), queues == 1 ? cudaErrorNotReady : cudaSuccess);
            assert_int_equal(x[0] != 0, queues == 2);
            peer_came = 1;
            CU(cudaEventSynchronize(e));
            CU(cudaEventDestroy(e));
        }
        unsetenv("LS_EMU_QUEUES");
    }
}

/* A stream is destroyed while one of its kernels waits: the call returns, and the queued operations run later. */
static void a_destroyed_stream_finishes_its_work(void **)
{
    on_host<int> x(1);
    cudaStream_t s;
    x[0] = 0;
    peer_came = 0;
    CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CU(emu_stream_poll(s, wait_for_peer, nullptr));
    CU(cudaMemsetAsync(&x[0], 1, 4, s));
    CU(cudaStreamDestroy(s));
    assert_int_equal((int)cudaStreamQuery(s), cudaErrorInvalidResourceHandle);
    assert_int_equal(x[0], 0);
    peer_came = 1;
    CU(cudaDeviceSynchronize());
    assert_int_equal(x[0], 0x01010101);
    assert_true(emu_holds(&x[0], 4) && !emu_holds(&x[0], 8192) && !emu_holds(&s, 1));
}

/* The processes of apart(): each must fail. */
static int child(const char *name)
{
    const std::string n = name;
    float *x;
    if (n == "some_leave") launch_and_wait(some_leave, 2, 64);
    if (n == "two_places") launch_and_wait(two_places, 1, 64);
    if (n == "half_a_warp") launch_and_wait(half_a_warp, 1, 32);
    if (n == "two_collectives") launch_and_wait(two_collectives, 1, 32);
    if (n == "askew" && cudaMalloc((void **)&x, 64) == cudaSuccess) launch_and_wait(askew, 1, 32, x);
    if (n == "too_new") launch_and_wait(too_new, 1, 32);
    if (n == "touch") touch();
    if (n.compare(0, 6, "tiles ") == 0) {
        stream s;
        tiles(s).run((int)strtol(name + 6, nullptr, 10), s);
        cudaDeviceSynchronize();
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return child(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_threads_meet_at_a_barrier),
        cmocka_unit_test(warp_functions_match_their_definition),
        cmocka_unit_test(block_sums_do_not_depend_on_order),
        cmocka_unit_test(sixteen_bit_numbers_round_to_nearest_even),
        cmocka_unit_test(dropout_masks_match_the_cpu),
        cmocka_unit_test(a_wrong_kernel_is_stopped_with_a_message),
        cmocka_unit_test(a_shuffled_order_reveals_races),
        cmocka_unit_test(unwritten_memory_reads_as_nan),
        cmocka_unit_test(products_of_tiles_match_plain_loops),
        cmocka_unit_test(wrong_products_of_tiles_are_found),
        cmocka_unit_test(invalid_launches_are_refused),
        cmocka_unit_test(a_stream_runs_only_when_waited_for),
        cmocka_unit_test(a_captured_graph_can_be_launched_again),
        cmocka_unit_test(memory_is_limited_and_checked),
        cmocka_unit_test(injected_faults_are_returned),
        cmocka_unit_test(a_waiting_kernel_blocks_only_its_stream),
        cmocka_unit_test(freeing_waits_for_the_whole_device),
        cmocka_unit_test(streams_of_one_queue_wait_for_each_other),
        cmocka_unit_test(a_destroyed_stream_finishes_its_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
