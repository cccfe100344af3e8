/* profile_summary.h - the members of profiles/profile_summary.json (docs/FORMATS.md) that summaries of nsys and of our traces share. */
#ifndef LS_REPORT_PROFILE_SUMMARY_H
#define LS_REPORT_PROFILE_SUMMARY_H

#include "core/json.h"
#include "report/compat/nsys.h"

typedef struct profile_file { /* an input */
    const char *name;
    ls_nsys_rows nvtx, osrt;
} profile_file;

typedef struct profile_summary {
    const char *run_dir;
    json_t *metrics, *launcher; /* files of the run; NULL: missing */
    json_t *hosts;              /* a list, or null                 */
    json_t *reports;            /* of nsys: a list                 */
    profile_file *file;
    int n_file;
    const ls_nsys_rows *nvtx, *osrt; /* of all files, ranked */
} profile_summary;

/* Reads the files of the run, and makes an empty list of reports. LS_E_NOMEM alone. */
ls_status profile_summary_begin(profile_summary *p, const char *run_dir);
void profile_summary_put(const profile_summary *p, ls_jsonw *w);
void profile_summary_fini(profile_summary *p); /* the file list stays the caller's */

#endif
