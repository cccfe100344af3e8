/* log.c - which log lines are printed, and their form. */
#include "core/log.h"

#include "core/clock.h"
#include "core/progress.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RULES_MAX 16

static const char *const level_word[] = {"error", "warn", "info", "debug", "trace"};

const char *const ls_log_subsystems[] = {"checkpoint", "comm",  "config", "data",    "device", "error",
                                         "gpu",        "infer", "log",    "memory",  "model",  "parallel",
                                         "pipeline",   "plan",  "plugin", "profile", "train",  NULL};

/* Set by ls_log_init before threads start, then read only. */
static struct {
    int rank;
    ls_level base;
    int n_rule;
    struct {
        char subsystem[24];
        ls_level level;
    } rule[RULES_MAX];
} conf = {.base = LS_LOG_WARN};

/* The place of a word of n bytes in a list; -1: none. */
static int place_in(const char *const *list, int n_list, const char *text, size_t n)
{
    for (int i = 0; i < n_list && list[i]; i++)
        if (strlen(list[i]) == n && !strncmp(text, list[i], n)) return i;
    return -1;
}

void ls_log_init(int rank)
{
    conf.rank = rank;
    conf.base = LS_LOG_WARN;
    conf.n_rule = 0;
    const char *spec = getenv("LS_LOG");
    while (spec && *spec) {
        size_t n = strcspn(spec, ",");
        const char *eq = memchr(spec, '=', n);
        const char *word = eq ? eq + 1 : spec;
        const int level = place_in(level_word, 5, word, n - (size_t)(word - spec));
        if (!eq && level >= 0) {
            conf.base = (ls_level)level;
        } else if (eq && level >= 0 && conf.n_rule < RULES_MAX &&
                   place_in(ls_log_subsystems, INT_MAX, spec, (size_t)(eq - spec)) >= 0) {
            memcpy(conf.rule[conf.n_rule].subsystem, spec, (size_t)(eq - spec));
            conf.rule[conf.n_rule].subsystem[eq - spec] = '\0';
            conf.rule[conf.n_rule++].level = (ls_level)level;
        } else if (eq && level >= 0 && !rank) {
            ls_warn("log", "LS_LOG: unknown subsystem '%.*s' (docs/LOGGING.md lists them)", (int)(eq - spec), spec);
        } else if (!rank) {
            ls_warn("log",
                    "LS_LOG: '%.*s' is not a level or subsystem=level; levels are error, warn, info, debug, trace",
                    (int)n, spec);
        }
        spec += n;
        if (*spec == ',') spec++;
    }
}

bool ls_log_on(ls_level level, const char *subsystem)
{
    if (level == LS_LOG_INFO && conf.rank != 0) return false;
    ls_level limit = conf.base;
    for (int i = 0; i < conf.n_rule; i++)
        if (!strcmp(conf.rule[i].subsystem, subsystem)) limit = conf.rule[i].level;
    return level <= limit;
}

void ls_log(ls_level level, const char *subsystem, const char *fmt, ...)
{
    if (!ls_log_on(level, subsystem)) return;
    char line[1024];
    struct timespec t;
    struct tm tm;
    ls_wall(&t);
    localtime_r(&t.tv_sec, &tm);
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d.%03d r%d %-10s %-5s ", tm.tm_hour, tm.tm_min, tm.tm_sec,
                     (int)(t.tv_nsec / 1000000), conf.rank, subsystem, level_word[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2) len = sizeof line - 2;
    line[len++] = '\n';
    line[len] = '\0';
    /* one write, so that lines of several workers do not mix */
    ls_progress_print(stderr,
                      level == LS_LOG_ERROR  ? LS_COLOUR_ERROR
                      : level == LS_LOG_WARN ? LS_COLOUR_WARNING
                                             : LS_COLOUR_NONE,
                      line);
}
