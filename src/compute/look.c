#include "compute/look.h"

#include "compute/card.h"
#include "compute/compute_impl.h"
#include "compute/nvml.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLUGIN "cuda"
#define LIMIT  60.0 /* seconds: a driver that has to start takes some, a dead one does not answer */

static ls_look not_there(const char *what, const char *words)
{
    ls_look r = {.expected = true};
    snprintf(r.why, sizeof r.why, "%s%.220s", what, words);
    for (char *p = r.why; *p; p++)
        if (*p == '\n') *p = ' ';
    return r;
}

/* NVML knows a card also where CUDA does not start. Of several, the first that is supported; else the first. */
static void name_card(ls_device_info *info)
{
    char index[16] = "0";
    ls_nvml *n;
    for (int i = 0; i < 64 && ls_nvml_open(&n, index) == LS_OK; snprintf(index, sizeof index, "%d", ++i)) {
        ls_gpu_facts f;
        ls_nvml_facts(n, &f);
        ls_nvml_close(&n);
        const bool supported = ls_card_of(f.capability) != NULL;
        if (!i || supported) snprintf(info->name, sizeof info->name, "%s", f.name), info->capability = f.capability;
        if (supported) return;
    }
    ls_err_clear();
}

/* In the child. r: the plugin cannot be loaded, or no device be used. */
static ls_look explain(ls_look r)
{
    char words[LS_LOOK_WORDS];
    const bool unknown = !r.info.name[0]; /* the words do not name the card */
    const bool none = strstr(r.why, "no CUDA device: ") != NULL;
    if (unknown) name_card(&r.info);
    const bool old = r.info.capability && !ls_card_of(r.info.capability);
    snprintf(words, sizeof words, "%s", r.why);
    if (unknown && old)
        snprintf(r.why, sizeof r.why, "%.90s is not supported (compute capability %d.%d, Lockstep needs 7.0)",
                 r.info.name, r.info.capability / 10, r.info.capability % 10);
    else if (unknown && r.info.name[0] && !none) snprintf(r.why, sizeof r.why, "%.220s (%.60s)", words, r.info.name);
    r.accepted = old || (none && getenv("CUDA_VISIBLE_DEVICES"));
    return r;
}

/* In the child. */
static ls_look look_here(int device, int local_rank)
{
    ls_look r = {.there = true};
    ls_device_info info = {0};
    bool loaded = false;
    const ls_compute_open_opts o = {.dtype = LS_F32, .device = device, .local_rank = local_rank};
    if (compute_look_plugin(PLUGIN, &o, &loaded, &r.info) == LS_OK) return r;
    info = r.info;
    r = not_there(loaded ? "" : "no CUDA plugin: ", ls_err_words());
    r.info = info;
    r.expected = loaded && !strstr(r.why, "no CUDA device: ");
    return explain(r);
}

/* In the child: there is no plugin. */
static ls_look look_without(int device, int local_rank)
{
    char words[LS_LOOK_WORDS], more[LS_LOOK_WORDS];
    (void)device, (void)local_rank;
    (void)ls_plugin_there(PLUGIN, words, sizeof words);
    snprintf(more, sizeof more, "%.180s; install nvcc, then ./run build", words);
    return explain(not_there("no CUDA plugin: ", more));
}

static void child_main(int fd, look_fn *look, int device, int local_rank)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const ls_look r = look(device, local_rank);
    _exit(write(fd, &r, sizeof r) == (ssize_t)sizeof r ? 0 : 1); /* less than PIPE_BUF: all or nothing */
}

/* Whether the answer came; the child may also end without one. */
static bool hear(int fd, double limit, ls_look *out, bool *late)
{
    const double end = ls_now() + limit;
    struct pollfd p = {fd, POLLIN, 0};
    *late = false;
    for (;;) {
        const double left = end - ls_now();
        const int n = poll(&p, 1, left > 0 ? (int)(1e3 * left) + 1 : 0);
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) return read(fd, out, sizeof *out) == (ssize_t)sizeof *out;
        *late = n == 0;
        return false;
    }
}

ls_look look_in_child(look_fn *look, int device, int local_rank, double limit)
{
    int fd[2], status = 0;
    char words[96];
    ls_look r = {0};
    bool late = false;
    if (pipe2(fd, O_CLOEXEC)) return not_there("cannot search for a GPU: ", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) child_main(fd[1], look, device, local_rank);
    if (pid < 0) r = not_there("cannot search for a GPU: ", strerror(errno));
    close(fd[1]);
    const bool heard = pid > 0 && hear(fd[0], limit, &r, &late);
    close(fd[0]);
    if (pid < 0) return r;
    if (late) kill(pid, SIGKILL);
    for (int turn = 0; waitpid(pid, &status, late ? WNOHANG : 0) != pid && turn < 200; turn++) {
        if (!late && errno != EINTR) break;
        nanosleep(&(struct timespec){0, 10000000}, NULL); /* a driver may keep even a killed process: it is left */
    }
    if (heard) return r;
    if (late) snprintf(words, sizeof words, "the CUDA driver did not answer within %.0f s", limit);
    else if (WIFSIGNALED(status))
        snprintf(words, sizeof words, "the CUDA driver crashed (%s)", strsignal(WTERMSIG(status)));
    else snprintf(words, sizeof words, "the CUDA driver ended the process that searched for a GPU");
    return not_there("", words);
}

static void read_word(const char *folder, const char *name, char word[16])
{
    FILE *f = fopen(ls_path_of(folder, name).text, "re");
    if (!f || fscanf(f, "%15s", word) != 1) *word = '\0';
    if (f) (void)fclose(f);
}

bool look_for_hardware(const char *pci_devices)
{
    char **name = NULL, vendor[16], class[16];
    size_t n = 0;
    bool found = false;
    if (ls_fs_list(pci_devices, &name, &n) != LS_OK) ls_err_clear();
    for (size_t i = 0; i < n && !found; i++) {
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s/%.200s", pci_devices, name[i]);
        read_word(folder, "vendor", vendor);
        read_word(folder, "class", class);
        found = !strcmp(vendor, "0x10de") && !strncmp(class, "0x03", 4);
    }
    ls_fs_list_free(name, n);
    return found;
}

static bool has_hardware(void)
{
    return look_for_hardware("/sys/bus/pci/devices") || ls_fs_exists("/dev/nvidia0") ||
           ls_fs_exists("/dev/nvhost-gpu") || ls_fs_exists("/dev/nvmap");
}

void ls_gpu_look(int device, int local_rank, ls_look *out)
{
    char words[LS_LOOK_WORDS];
    if (ls_plugin_there(PLUGIN, words, sizeof words)) {
        *out = look_in_child(look_here, device, local_rank, LIMIT);
        if (!out->there && !out->expected) out->expected = has_hardware();
    } else if (has_hardware()) {
        *out = look_in_child(look_without, device, local_rank, LIMIT);
    } else {
        *out = not_there("no CUDA plugin: ", words);
        out->expected = false;
    }
}
