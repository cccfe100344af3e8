/* log.h - words for people, on stderr: "time rank subsystem level text".
 *
 * LS_LOG=info,comm=trace sets the level, globally and by subsystem (error warn info debug trace). Info comes from rank 0
 * alone, warnings from all. Libraries are silent when all is well. */
#ifndef LS_CORE_LOG_H
#define LS_CORE_LOG_H

#include <stdbool.h>

typedef enum ls_level { LS_LOG_ERROR, LS_LOG_WARN, LS_LOG_INFO, LS_LOG_DEBUG, LS_LOG_TRACE } ls_level;

/* Reads LS_LOG; called by the program at its start. A spec that cannot be read is reported as a warning. */
void ls_log_init(int rank);
bool ls_log_on(ls_level level, const char *subsystem);
void ls_log(ls_level level, const char *subsystem, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define ls_warn(subsystem, ...)  ls_log(LS_LOG_WARN, subsystem, __VA_ARGS__)
#define ls_info(subsystem, ...)  ls_log(LS_LOG_INFO, subsystem, __VA_ARGS__)
#define ls_debug(subsystem, ...) ls_log(LS_LOG_DEBUG, subsystem, __VA_ARGS__)

#endif
