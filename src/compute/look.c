#include "compute/look.h"

#include "compute/compute_impl.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
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

/* In the child. */
static ls_look look_here(int local_rank)
{
    ls_look r = {.there = true};
    bool loaded = false;
    const ls_compute_open_opts o = {.dtype = LS_F32, .device = -1, .local_rank = local_rank};
    if (compute_look_plugin(PLUGIN, &o, &loaded, &r.info) == LS_OK) return r;
    r = not_there(loaded ? "" : "no CUDA plugin: ", ls_err_words());
    r.expected = loaded && !strstr(r.why, "no CUDA device: ");
    return r;
}

static void child_main(int fd, look_fn *look, int local_rank)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const ls_look r = look(local_rank);
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

ls_look look_in_child(look_fn *look, int local_rank, double limit)
{
    int fd[2], status = 0;
    char words[96];
    ls_look r = {0};
    bool late = false;
    if (pipe2(fd, O_CLOEXEC)) return not_there("cannot search for a GPU: ", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) child_main(fd[1], look, local_rank);
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

void ls_gpu_look(int local_rank, ls_look *out)
{
    char words[LS_LOOK_WORDS];
    const bool plugin = ls_plugin_there(PLUGIN, words, sizeof words);
    *out = plugin ? look_in_child(look_here, local_rank, LIMIT) : not_there("no CUDA plugin: ", words);
    if (!plugin) out->expected = false;
    if (!out->there && !out->expected)
        out->expected = look_for_hardware("/sys/bus/pci/devices") || ls_fs_exists("/dev/nvidia0") ||
                        ls_fs_exists("/dev/nvhost-gpu") || ls_fs_exists("/dev/nvmap");
}
