/* log.h - log lines on stderr: "time rank subsystem level text".
 *
 * LS_LOG=info,comm=trace sets the level, for all subsystems and for one (error warn info debug trace). The default is
 * warn, so a run without problems logs nothing. Rank 0 alone prints info lines; every rank prints the other levels.
 * docs/LOGGING.md lists the subsystems and what each of them prints. */
#ifndef LS_CORE_LOG_H
#define LS_CORE_LOG_H

#include <stdbool.h>

typedef enum ls_level { LS_LOG_ERROR, LS_LOG_WARN, LS_LOG_INFO, LS_LOG_DEBUG, LS_LOG_TRACE } ls_level;

/* Every subsystem that a log line may name, ended by NULL. LS_LOG with another name is reported. */
extern const char *const ls_log_subsystems[];

/* Reads LS_LOG. Called when the program starts, and again by a worker once it knows its rank. Rank 0 prints a warning for
 * each part of LS_LOG that is not valid; the other parts apply. */
void ls_log_init(int rank);
bool ls_log_on(ls_level level, const char *subsystem);
void ls_log(ls_level level, const char *subsystem, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define ls_warn(subsystem, ...)  ls_log(LS_LOG_WARN, subsystem, __VA_ARGS__)
#define ls_info(subsystem, ...)  ls_log(LS_LOG_INFO, subsystem, __VA_ARGS__)
#define ls_debug(subsystem, ...) ls_log(LS_LOG_DEBUG, subsystem, __VA_ARGS__)

#endif
