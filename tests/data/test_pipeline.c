/* prepare on several threads and files at the same time: the same files and the same error as one thread. */
#include "cmocka_all.h"
#include "core/mem.h"
#include "core/rng.h"
#include "data/prepare.h"
#include "own_folder.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define MB ((size_t)1 << 20)

/* nbytes of words; every third document of JSON lines is one of 64. */
static ls_str make_text(uint64_t seed, size_t nbytes, bool lines)
{
    const uint64_t key = ls_rng_key(seed, LS_RNG_TEST, 0, 0);
    ls_str s = {0};
    for (uint64_t i = 0; s.len < nbytes; i++) {
        if (lines) ls_str_add(&s, "{\"id\": 7, \"text\": \"");
        const uint64_t doc = i % 3 ? ls_rng_u64(key, i) : ls_rng_u64(5, i % 64);
        for (uint64_t k = 0; k < doc % 90; k++)
            ls_str_addf(&s, "%s%llx", k ? " " : "", (unsigned long long)ls_rng_u64(doc, k) >> (k * 7 % 60));
        ls_str_add(&s, lines ? "\"}\n" : ".\n");
    }
    return s;
}

static void write_text(const char *name, const ls_str *s)
{
    assert_int_equal(ls_fs_write(in_dir(name), s->data, s->len), LS_OK);
}

static void write_zstd(const char *name, const ls_str *s)
{
    const size_t cap = ZSTD_compressBound(s->len);
    void *packed = malloc(cap);
    const size_t n = ZSTD_compress(packed, cap, s->data, s->len, 1);
    assert_false(ZSTD_isError(n));
    assert_int_equal(ls_fs_write(in_dir(name), packed, n), LS_OK);
    free(packed);
}

/* Files of more than one block, small and empty ones, and two equal texts of several blocks. */
static const char *const corpus[] = {"a.jsonl.zst", "b.jsonl", "c.txt",       "d.jsonl",
                                     "e.txt",       "f.jsonl", "g.jsonl.zst", "h.txt.zst"};

static void make_corpus(void)
{
    const size_t size[] = {5 * MB / 2, 1000, 5 * MB / 4, 0, 200, 5 * MB / 4, 5 * MB / 2, 5 * MB / 4};
    for (size_t i = 0; i < N_OF(corpus); i++) {
        ls_str s = make_text(i == 7 ? 2 : i, size[i], strstr(corpus[i], ".jsonl"));
        if (strstr(corpus[i], ".zst")) write_zstd(corpus[i], &s);
        else write_text(corpus[i], &s);
        ls_str_fini(&s);
    }
}

static void add_inputs(ls_inputs *list, const char *const *name, size_t n)
{
    for (size_t i = 0; i < n; i++) assert_int_equal(ls_inputs_add(list, in_dir(name[i]), LS_TEXT_AUTO), LS_OK);
}

static ls_status prepare(const ls_inputs *in, int threads, int files, const char *out)
{
    ls_tokenizer *bytes = NULL;
    ls_prepare_result r;
    LS_TRY(ls_tokenizer_bytes(&bytes));
    const ls_status st = ls_prepare(&(ls_prepare_opts){.train = in,
                                                       .tok = bytes,
                                                       .text_key = "text",
                                                       .val_fraction = 0.1,
                                                       .min_chars = 30,
                                                       .dedup = true,
                                                       .shard_tokens = 1500000,
                                                       .journal_seconds = 1000,
                                                       .threads = threads,
                                                       .files = files,
                                                       .out_dir = in_dir(out)},
                                    &r);
    ls_tokenizer_destroy(&bytes);
    return st;
}

static void same_folders(const char *a, const char *b)
{
    char **name = NULL;
    size_t n = 0;
    assert_int_equal(ls_fs_list(in_dir(a), &name, &n), LS_OK);
    assert_int_equal(test_n_entries(in_dir(b)), (int)n);
    for (size_t i = 0; i < n; i++) assert_equal_files(test_path(dir, a, name[i]), test_path(dir, b, name[i]));
    ls_fs_list_free(name, n);
}

static void threads_and_files_do_not_change_a_byte(void **state)
{
    (void)state;
    static const int threads[] = {2, 4, 8, 8}, files[] = {0, 4, 0, 8};
    ls_inputs in = {0};
    make_corpus();
    add_inputs(&in, corpus, N_OF(corpus));
    const int64_t live = ls_mem_live();
    assert_int_equal(prepare(&in, 1, 1, "one"), LS_OK);
    assert_true(test_n_entries(in_dir("one")) > 5); /* shards */
    for (size_t i = 0; i < N_OF(threads); i++) {
        assert_int_equal(prepare(&in, threads[i], files[i], "many"), LS_OK);
        same_folders("one", "many");
    }
    assert_int_equal(ls_mem_live(), live);
    ls_inputs_fini(&in);
}

static void the_first_error_of_the_corpus_is_reported(void **state)
{
    (void)state;
    const char *const name[] = {"w.jsonl", "x.jsonl", "y.jsonl", "z.jsonl.zst"};
    ls_inputs in = {0};
    for (size_t i = 0; i < N_OF(name); i++) {
        ls_str s = make_text(20 + i, 5 * MB / 4, true);
        if (i == 1) ls_str_add(&s, "{\"text\": 5}\n");
        if (i == 2) s.data[0] = '[';
        if (i == 3) write_zstd(name[i], &s);
        else write_text(name[i], &s);
        ls_str_fini(&s);
    }
    int64_t size;
    assert_int_equal(ls_fs_size(in_dir("z.jsonl.zst"), &size), LS_OK);
    assert_int_equal(truncate(in_dir("z.jsonl.zst"), size / 2), 0);
    add_inputs(&in, name, N_OF(name));
    const int64_t live = ls_mem_live();
    for (int threads = 1; threads < 9; threads *= 2) {
        assert_int_equal(prepare(&in, threads, threads > 2 ? 4 : 0, "wrong"), LS_E_FORMAT);
        if (!strstr(ls_err_words(), "x.jsonl: line ") || !strstr(ls_err_words(), "\"text\" is not a string"))
            fail_msg("%d threads: %s", threads, ls_err_words());
        assert_false(ls_fs_exists(in_dir("wrong")));
        assert_false(ls_fs_exists(in_dir("wrong.partial")));
    }
    assert_int_equal(ls_mem_live(), live);
    ls_inputs_fini(&in);
}

/* ---- a first file that comes last ---- */

/* Temporary files with results that wait. */
static int n_spilled(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300], target[1024] = "";
        struct stat sb;
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "/ahead.tmp") && !stat(path, &sb))
            n += sb.st_size > 0;
    }
    if (d) closedir(d);
    return n;
}

typedef struct feeder {
    char path[300];
    ls_str text;
    int seen;
} feeder;

/* Sends the text of the first file when later files have been read. */
static void *feed(void *arg)
{
    feeder *f = arg;
    FILE *out = fopen(f->path, "w");
    for (int i = 0; i < 2000 && f->seen < 2; i++) {
        usleep(5000);
        f->seen = n_spilled();
    }
    fwrite(f->text.data, 1, f->text.len, out);
    fclose(out);
    return NULL;
}

static void later_files_are_read_while_the_first_one_waits(void **state)
{
    (void)state;
    feeder f = {.text = make_text(9, MB + 5000, true)};
    ls_inputs slow = {0}, in = {0};
    pthread_t thread;
    make_corpus();
    snprintf(f.path, sizeof f.path, "%s", in_dir("0.jsonl"));
    assert_int_equal(mkfifo(f.path, 0600), 0);
    add_inputs(&slow, (const char *const[]){"0.jsonl"}, 1);
    add_inputs(&slow, corpus, N_OF(corpus));
    assert_int_equal(pthread_create(&thread, NULL, feed, &f), 0);
    assert_int_equal(prepare(&slow, 4, 4, "ahead"), LS_OK);
    pthread_join(thread, NULL);
    assert_true(f.seen >= 2);
    assert_int_equal(n_spilled(), 0);
    assert_int_equal(unlink(f.path), 0);
    write_text("0.jsonl", &f.text);
    add_inputs(&in, (const char *const[]){"0.jsonl"}, 1);
    add_inputs(&in, corpus, N_OF(corpus));
    assert_int_equal(prepare(&in, 1, 1, "after"), LS_OK);
    same_folders("after", "ahead");
    ls_inputs_fini(&slow);
    ls_inputs_fini(&in);
    ls_str_fini(&f.text);
}

/* Which one fails depends on the threads; every outcome is an error or the right files, without a leak. */
static void a_failed_allocation_of_any_thread_ends_the_run(void **state)
{
    (void)state;
    const char *const name[] = {"b.jsonl", "f.jsonl", "h.txt.zst", "f.jsonl"};
    ls_inputs in = {0};
    int n_failed = 0;
    make_corpus();
    add_inputs(&in, name, N_OF(name));
    assert_int_equal(prepare(&in, 1, 1, "one"), LS_OK);
    const int64_t live = ls_mem_live();
    for (long k = 0; k < 400; k += 31) {
        ls_mem_fail_at(k);
        const ls_status st = prepare(&in, 4, 4, "oom");
        ls_mem_fail_at(-1);
        assert_int_equal(ls_mem_live(), live);
        if (st == LS_OK) same_folders("one", "oom");
        else assert_int_equal(st, LS_E_NOMEM);
        n_failed += st != LS_OK;
        assert_int_equal(ls_fs_remove_tree(in_dir("oom")), LS_OK);
        assert_int_equal(ls_fs_remove_tree(in_dir("oom.partial")), LS_OK);
    }
    assert_true(n_failed > 3);
    ls_inputs_fini(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_and_files_do_not_change_a_byte, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_first_error_of_the_corpus_is_reported, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(later_files_are_read_while_the_first_one_waits, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_failed_allocation_of_any_thread_ends_the_run, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
