/* identity.c - who ran what where: run id, commit, host, operating system. No program is started: .git is read as files. */
#include "train/artifacts.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/rng.h"

#include <gnu/libc-version.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* First line of a small file, without trailing blanks; false when it cannot be read. */
static bool first_line(const char *path, char *buf, size_t n)
{
    FILE *f = fopen(path, "r");
    bool ok = f && fgets(buf, (int)n, f);
    if (f) fclose(f);
    if (!ok) return false;
    size_t k = strlen(buf);
    while (k && isspace((unsigned char)buf[k - 1])) buf[--k] = '\0';
    return true;
}

static bool take_commit(const char *word, char commit[80])
{
    const size_t n = strspn(word, "0123456789abcdef");
    if (word[n] || (n != 40 && n != 64)) return false;
    memcpy(commit, word, n + 1);
    return true;
}

/* refs/heads/x as a file of <dir>. */
static bool loose_ref(const char *dir, const char *ref, char commit[80])
{
    char path[PATH_MAX], line[1024];
    return ls_path_in(path, dir, "%s", ref) == LS_OK && first_line(path, line, sizeof line) &&
           take_commit(line, commit);
}

/* refs/heads/x in <dir>/packed-refs. */
static bool packed_ref(const char *dir, const char *ref, char commit[80])
{
    char path[PATH_MAX], line[1024], word[80], name[940];
    FILE *f = ls_path_in(path, dir, "packed-refs") == LS_OK ? fopen(path, "r") : NULL;
    bool hit = false;
    while (f && !hit && fgets(line, sizeof line, f))
        hit = sscanf(line, "%79s %939s", word, name) == 2 && !strcmp(name, ref) && take_commit(word, commit);
    if (f) fclose(f);
    return hit;
}

/* A path in a file of git: absolute, or from a folder. */
static bool resolve(char path[PATH_MAX], const char *dir, const char *text)
{
    return ls_path_in(path, *text == '/' ? "/" : dir, "%s", text) == LS_OK;
}

/* HEAD of a repository's .git folder; a linked working tree has its refs in the common one. */
static bool head_of(const char *git, char commit[80])
{
    char path[PATH_MAX], head[1024], common[PATH_MAX], line[1024];
    if (ls_path_in(path, git, "HEAD") != LS_OK || !first_line(path, head, sizeof head)) return false;
    if (strncmp(head, "ref: ", 5)) return take_commit(head, commit);
    const char *ref = head + 5;
    if (strstr(ref, "..") || ls_path_in(path, git, "commondir") != LS_OK) return false;
    if (!resolve(common, git, first_line(path, line, sizeof line) ? line : "")) return false;
    return loose_ref(git, ref, commit) || loose_ref(common, ref, commit) || packed_ref(common, ref, commit);
}

bool ls_git_head(const char *start, char commit[80])
{
    char dir[PATH_MAX], git[PATH_MAX], line[1024], target[PATH_MAX];
    if (!realpath(start, dir)) return false;
    for (;;) {
        if (ls_path_in(git, dir, ".git") != LS_OK) return false;
        if (ls_fs_is_dir(git)) return head_of(git, commit);
        if (first_line(git, line, sizeof line) && !strncmp(line, "gitdir: ", 8)) /* a linked working tree */
            return resolve(target, dir, line + 8) && head_of(target, commit);
        char *slash = strrchr(dir, '/');
        if (!slash || !strcmp(dir, "/")) return false;
        if (slash == dir) slash++;
        *slash = '\0';
    }
}

static void find_commit(char commit[80])
{
    const char *env = getenv("GIT_COMMIT");
    char exe[PATH_MAX];
    if (env && *env) {
        snprintf(commit, 80, "%.79s", env);
        return;
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) { /* the tree that the program was built in */
        exe[n] = '\0';
        char *slash = strrchr(exe, '/');
        if (slash && slash != exe) *slash = '\0';
        if (ls_git_head(exe, commit)) return;
    }
    if (!ls_git_head(".", commit)) snprintf(commit, 80, "unknown");
}

/* --- the environment --- */

/* Whether a variable (n bytes of name) can change results or speed. OMP_NUM_THREADS is not one: threads are counted by --threads. */
static bool is_switch(const char *name, size_t n)
{
    static const char *const some[] = {"CUBLAS_WORKSPACE_CONFIG",
                                       "CUDA_DEVICE_MAX_CONNECTIONS",
                                       "CUDA_LAUNCH_BLOCKING",
                                       "GOMP_CPU_AFFINITY",
                                       "GOMP_SPINCOUNT",
                                       "LS_ATTENTION",
                                       "LS_CLASSIFIER_MIB",
                                       "LS_CUDA_GRAPHS",
                                       "LS_CUDNN",
                                       "LS_FLASH_WGMMA",
                                       "LS_GEMM",
                                       "LS_GEMM_FP32",
                                       "LS_GEMM_TUNE",
                                       "LS_SIMD",
                                       "NVIDIA_TF32_OVERRIDE",
                                       "OMP_DYNAMIC",
                                       "OMP_PLACES",
                                       "OMP_PROC_BIND",
                                       "OMP_THREAD_LIMIT",
                                       "OMP_WAIT_POLICY",
                                       "OPENBLAS_CORETYPE",
                                       "OPENBLAS_NUM_THREADS"};
    static const char *const not_nccl[] = {"NCCL_COMM_ID", "NCCL_HOSTID"};
    static const char *const place[] = {"_FILE", "_PLUGIN"};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (strlen(some[i]) == n && !memcmp(some[i], name, n)) return true;
    if (n < 5 || memcmp(name, "NCCL_", 5) || (n >= 10 && !memcmp(name, "NCCL_DEBUG", 10))) return false;
    for (size_t i = 0; i < sizeof not_nccl / sizeof *not_nccl; i++)
        if (strlen(not_nccl[i]) == n && !memcmp(not_nccl[i], name, n)) return false;
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        const size_t k = strlen(place[i]);
        if (n > k && !memcmp(name + n - k, place[i], k)) return false;
    }
    return true;
}

static bool counts(const char *entry)
{
    const size_t n = strcspn(entry, "=");
    return entry[n] && entry[n + 1] && is_switch(entry, n);
}

void ls_run_environment(char *const *env, ls_str *out)
{
    for (const char *last = NULL;;) {
        const char *next = NULL; /* the first one after `last` */
        for (char *const *e = env; e && *e; e++)
            if (counts(*e) && (!last || strcmp(*e, last) > 0) && (!next || strcmp(*e, next) < 0)) next = *e;
        if (!next) return;
        if (last) ls_str_addc(out, ' ');
        for (const char *c = next; *c; c++)
            ls_str_addc(out, isspace((unsigned char)*c) || iscntrl((unsigned char)*c) ? '_' : *c);
        last = next;
    }
}

ls_status ls_run_identity_capture(ls_run_identity *id, const char *program, int argc, char *const *argv,
                                  const char *built)
{
    ls_run_identity r = {.built = built};
    struct utsname u;
    uint32_t tail;
    char compact[24];
    ls_str line = {0}, environment = {0};
    ls_run_environment(environ, &environment);
    ls_str_add(&line, program);
    for (int i = 0; i < argc; i++) ls_str_addf(&line, " %s", argv[i]);
    if (line.failed || environment.failed) {
        ls_str_fini(&line);
        ls_str_fini(&environment);
        return ls_nomem(256, "the command line");
    }
    ls_utc_stamp(r.timestamp_utc);
    ls_utc_compact(compact);
    if (getrandom(&tail, sizeof tail, GRND_NONBLOCK) != (ssize_t)sizeof tail)
        tail = (uint32_t)ls_rng_mix((uint64_t)getpid() ^ (uint64_t)(ls_now() * 1e9));
    snprintf(r.run_id, sizeof r.run_id, "%s-%08x", compact, tail);
    find_commit(r.git_commit);
    if (gethostname(r.hostname, sizeof r.hostname - 1) || !r.hostname[0])
        snprintf(r.hostname, sizeof r.hostname, "unknown");
    if (uname(&u)) snprintf(r.os, sizeof r.os, "unknown");
    else
        snprintf(r.os, sizeof r.os, "%.60s-%.80s-%.60s-with-glibc%.20s", u.sysname, u.release, u.machine,
                 gnu_get_libc_version());
    r.command_line = line.data;
    r.environment = environment.data;
    *id = r;
    return LS_OK;
}

void ls_run_identity_fini(ls_run_identity *id)
{
    ls_free(id->command_line);
    ls_free(id->environment);
    *id = (ls_run_identity){0};
}
