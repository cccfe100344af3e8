/* draw.c - charts as files: SVG always, and PNG where librsvg's program can make it of that SVG. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/chart/chart.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNITS = 760, PNG_UNITS = 860 }; /* of a PNG's 960 pixels */

/* Runs rsvg-convert. *there false: it is not installed (no failure). LS_E_IO with its message when it fails. */
static ls_status rsvg_run(const char *svg, const char *png, bool *there)
{
    char output[sizeof(ls_path) + 16];
    char *argv[] = {"rsvg-convert", "--width=960", output, "--", (char *)(uintptr_t)svg, NULL};
    char words[512] = "", sink[512];
    posix_spawn_file_actions_t to_pipe;
    int fd[2], rc = 0;
    pid_t pid;
    snprintf(output, sizeof output, "--output=%s", png); /* one word: a name may begin with '-' */
    if (pipe2(fd, O_CLOEXEC)) return ls_fail(LS_E_IO, "a pipe to rsvg-convert: %s", strerror(errno));
    posix_spawn_file_actions_init(&to_pipe);
    posix_spawn_file_actions_adddup2(&to_pipe, fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&to_pipe, fd[1], STDERR_FILENO);
    const int failed = posix_spawnp(&pid, argv[0], &to_pipe, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&to_pipe);
    close(fd[1]);
    *there = failed != ENOENT;
    if (failed) close(fd[0]);
    if (!*there) return LS_OK;
    if (failed) return ls_fail(LS_E_IO, "starting rsvg-convert: %s", strerror(failed));
    for (size_t n = 0;;) { /* all of it, or rsvg-convert would wait */
        const size_t room = sizeof words - 1 - n;
        const ssize_t k = read(fd[0], room ? words + n : sink, room ? room : sizeof sink);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break;
        if (room) n += (size_t)k;
    }
    close(fd[0]);
    while (waitpid(pid, &rc, 0) < 0 && errno == EINTR) {}
    return rc ? ls_fail(LS_E_IO, "rsvg-convert could not draw %s: %.300s", png, words) : LS_OK;
}

ls_status report_write_text(const char *dir, const char *name, const ls_str *text)
{
    if (text->failed) return ls_nomem(text->cap, name);
    return ls_fs_write(ls_path_of(dir, name).text, text->data ? text->data : "", text->len);
}

static ls_status draw_png(const ls_chart *c, const char *dir, report_pen *pen)
{
    ls_str text = {0};
    char name[64];
    snprintf(name, sizeof name, "%.50s.png", c->file);
    const ls_path png = ls_path_of(dir, name);
    snprintf(name, sizeof name, ".%.50s.svg", c->file);
    const ls_path svg = ls_path_of(dir, name);
    ls_svg_draw(c, PNG_UNITS, LS_SVG_PRINT, &text);
    ls_status st = report_write_text(dir, name, &text);
    ls_str_fini(&text);
    LS_TRY(st);
    if (rsvg_run(svg.text, png.text, &pen->there) != LS_OK) {
        if (!pen->n_failed++) snprintf(pen->words, sizeof pen->words, "%s", ls_err_words());
        ls_err_clear();
        unlink(png.text); /* half a picture, or an earlier report's */
    } else if (pen->there) pen->n_png++;
    unlink(svg.text);
    return LS_OK;
}

ls_status report_write_chart(const ls_chart *c, const char *dir, report_pen *pen)
{
    ls_str svg = {0};
    char name[64];
    snprintf(name, sizeof name, "%.50s.svg", c->file);
    ls_svg_draw(c, UNITS, LS_SVG_FILE, &svg);
    ls_status st = report_write_text(dir, name, &svg);
    ls_str_fini(&svg);
    LS_TRY(st);
    return pen->there ? draw_png(c, dir, pen) : LS_OK;
}

void report_pen_words(const report_pen *pen, ls_str *out)
{
    if (!pen->n_failed) return;
    size_t n = strcspn(pen->words, "\n");
    ls_str_addf(out, "%.*s", (int)n, pen->words);
    if (pen->n_failed > 1) ls_str_addf(out, " (and %d more)", pen->n_failed - 1);
    ls_str_addf(out, ": %s", pen->n_failed > 1 ? "those charts are SVG files only" : "that chart is an SVG file only");
}
