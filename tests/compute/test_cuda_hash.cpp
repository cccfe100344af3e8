/* test_cuda_hash.cpp - the hash of device memory: its definition, at every alignment; every bit counts; no order of threads and blocks
 * changes it. Where nvcc is available, the same file tests a real device (device/cuda_hash). */
#include "cuda_check.h"

#include "compute/cuda/kernels/kernels.h"

#include <algorithm>

typedef std::vector<unsigned char> bytes;

static bytes some(size_t n, uint64_t key)
{
    bytes x(n);
    for (size_t i = 0; i < n; i++) x[i] = (unsigned char)ls_rng_u64(key, i);
    return x;
}

/* The definition (hash.cu). */
static uint64_t wanted(const bytes &x, bool more = false, uint64_t former = 0)
{
    uint64_t sum = 0;
    for (size_t i = 0; 8 * i < x.size(); i++) {
        uint64_t w = 0;
        memcpy(&w, &x[8 * i], std::min<size_t>(8, x.size() - 8 * i));
        sum += ls_rng_mix(w + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u);
    }
    const uint64_t h = ls_rng_mix(sum + ls_rng_mix((uint64_t)x.size() + 1));
    return more ? ls_rng_mix(3 * former + h) : h;
}

/* An array of up to `room` bytes on the device, and where its hash goes. */
struct place {
    unsigned char *x = nullptr;
    void *scratch = nullptr;
    uint64_t *out = nullptr;
    explicit place(size_t room)
    {
        CU(cudaMalloc((void **)&x, room + 16));
        CU(cudaMalloc(&scratch, CU_HASH_BLOCKS * sizeof *out));
        CU(cudaMemset(scratch, 0xff, CU_HASH_BLOCKS * sizeof *out));
        CU(cudaHostAlloc((void **)&out, sizeof *out, cudaHostAllocPortable | cudaHostAllocMapped));
    }
    place(const place &) = delete;
    place &operator=(const place &) = delete;
    ~place()
    {
        cudaFree(x);
        cudaFree(scratch);
        cudaFreeHost(out);
    }
    uint64_t hash(const bytes &b, size_t off = 0, bool more = false, void *stream = nullptr) const
    {
        if (!b.empty()) CU(cudaMemcpy(x + off, b.data(), b.size(), cudaMemcpyHostToDevice));
        CU(cu_hash(stream, out, x + off, b.size(), more, scratch));
        CU(cudaDeviceSynchronize());
        return *out;
    }
};

static void it_matches_its_definition(void **state)
{
    (void)state;
    const place p(1 << 20);
    for (size_t n = 0; n <= 40; n++)
        for (size_t off = 0; off < 16; off += n < 20 ? 1 : 5) {
            const bytes x = some(n, n);
            CU(cudaMemset(p.x, 0xa5, n + off + 16)); /* neighbours do not count */
            const uint64_t former = p.hash(x, off);
            assert_true(former == wanted(x));
            assert_true(p.hash(x, off, true) == wanted(x, true, former));
        }
    for (size_t n : {(size_t)4096, (size_t)16384, (size_t)16392, (size_t)100003, (size_t)1 << 20})
        for (size_t off : {(size_t)0, (size_t)8, (size_t)2}) assert_true(p.hash(some(n, n), off) == wanted(some(n, n)));
    const size_t many = (size_t)CU_HASH_BLOCKS * 16384 + 41; /* blocks come round again */
    const place large(many);
    assert_true(large.hash(some(many, 1)) == wanted(some(many, 1)));
}

static void every_bit_changes_it(void **state)
{
    (void)state;
    const place p(1 << 17);
    for (size_t n : {1, 7, 8, 9, 16, 23, 70})
        for (size_t off : {0, 3}) {
            bytes x = some(n, 5 + n);
            const uint64_t was = p.hash(x, off);
            for (size_t bit = 0; bit < 8 * n; bit++) {
                x[bit / 8] ^= (unsigned char)(1u << bit % 8);
                assert_true(p.hash(x, off) != was);
                x[bit / 8] ^= (unsigned char)(1u << bit % 8);
            }
            assert_true(p.hash(x, off) == was);
        }
    bytes x = some(100001, 3);
    const uint64_t was = p.hash(x);
    for (uint64_t k = 0; k < 60; k++) {
        const size_t bit = k ? ls_rng_u64(9, k) % (8 * x.size()) : 8 * x.size() - 1;
        x[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_true(p.hash(x) != was);
        x[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void places_and_the_length_count(void **state)
{
    (void)state;
    const place p(1 << 12);
    bytes x = some(256, 4), y = x;
    std::swap_ranges(y.begin(), y.begin() + 8, y.begin() + 64);
    assert_true(p.hash(x) != p.hash(y));
    std::vector<uint64_t> seen;
    for (size_t n = 0; n < 40; n++) seen.push_back(p.hash(bytes(n))); /* zeros */
    std::sort(seen.begin(), seen.end());
    assert_true(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    p.hash(x);
    const uint64_t xy = p.hash(y, 0, true);
    p.hash(y);
    assert_true(p.hash(x, 0, true) != xy);
}

static void no_order_of_threads_changes_it(void **state)
{
    (void)state;
    const place p(1 << 19);
    const bytes x = some(300007, 8);
    judge_orders("hash", [&](verdict &v, void *stream) {
        for (const char *processors : {"1", "7", "132"}) {
            CU(setenv("LS_EMU_PROCESSORS", processors, 1));
            const uint64_t h = p.hash(x, 0, false, stream);
            assert_true(h == wanted(x));
            v.bits.push_back(bytes((const unsigned char *)&h, (const unsigned char *)(&h + 1)));
        }
    });
    CU(unsetenv("LS_EMU_PROCESSORS"));
}

int main(void)
{
    if (no_cuda_device()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_matches_its_definition),
        cmocka_unit_test(every_bit_changes_it),
        cmocka_unit_test(places_and_the_length_count),
        cmocka_unit_test(no_order_of_threads_changes_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
