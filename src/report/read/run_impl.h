/* run_impl.h - the parts of reading a run. Each adds notes on what is wrong and continues; only LS_E_NOMEM fails. */
#ifndef LS_REPORT_RUN_IMPL_H
#define LS_REPORT_RUN_IMPL_H

#include "report/read/run_folder.h"

enum { RUN_MAX_DEPTH = 5 };            /* of folders below a path, searched for runs */
bool run_is_skipped(const char *name); /* hidden, or a checkpoint: no runs are searched there */

/* The strategy, the setting, the seed, and whether the run was profiled. */
ls_status run_read_setting(const report_doc *d, ls_run *r);
void run_read_resources(const report_doc *d, ls_run *r); /* communication, memory, utilisation: below `lockstep` */
void run_tell_waits(const report_doc *d,
                    ls_run *r); /* last: splits the waiting into communication, stragglers, bubble */
ls_status run_read_steps(ls_text t, const char *dir, ls_notes *notes, ls_run *r); /* metrics.jsonl */
ls_status run_measure_steps(ls_run *r); /* means of the steps after the warm-up, which n_before or n_warm moved */
ls_status run_read_pipeline(ls_text t, const char *dir, ls_notes *notes, ls_run *r);
/* events.jsonl, after the steps and the setting; a run that was interrupted is marked in its setting. */
ls_status run_read_events(ls_text t, const char *dir, ls_notes *notes, ls_run *r);
/* After the events: a run that somebody resumed is marked in its setting, and as profiled if there is a profile, which may be of its first part. */
ls_status run_mark_resumed(const report_doc *d, bool traced, ls_run *r);
void run_events_fini(ls_interruptions **e);
void run_read_complete(ls_text t, const char *dir, ls_notes *notes, ls_run *r); /* RUN_COMPLETE.txt */

/* Files next to a run: NCCL's summary is parsed already, and left out with a note if the run recorded that it did not use NCCL; reads
 * the rest. */
ls_status run_read_proof(const ls_run_texts *t, ls_notes *notes, ls_run *r);
void run_proof_fini(ls_run_proof *p);
/* The summary of the NCCL logs in a run folder (nccl_rank_*.log there or in nccl/), as the text of a summary.json; NULL: there are none. */
ls_status run_sum_logs(const char *dir, ls_text *out);
bool run_has_logs(const char *dir);
/* The summary of the nsys statistics in profiles/, where no profile_summary.json was written; NULL: there are none. */
ls_status run_sum_nsys(const char *dir, ls_notes *notes, ls_text *out);

/* A folder of the translation study's scripts (docs/REFERENCES.md); *found: it is one with results. */
ls_status run_read_workdir(const char *dir, ls_notes *notes, ls_run *out, bool *found);
/* Adds the results in dir/workdir, where the translation task puts them, to a run of ours. */
ls_status run_add_results(const char *dir, ls_notes *notes, ls_run *r);

#endif
