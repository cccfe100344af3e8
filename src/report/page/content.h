/* content.h - the content of a report: the summary, then one section per question. chart_sets.c makes the charts, summary.c the text. */
#ifndef LS_REPORT_CONTENT_H
#define LS_REPORT_CONTENT_H

#include "report/compare/analysis.h"
#include "report/page/doc.h"
#include "report/read/benches.h"

/* Fills a zeroed document; check d->failed. The document borrows from the runs. bench: that made the runs; NULL: not known. */
void ls_report_doc(const ls_analysis *a, const ls_found_bench *bench, ls_doc *d);

/* inside the folder */
void content_summary(const ls_analysis *a, const ls_found_bench *bench, ls_doc *d);
/* The section of a benchmark on a page of several; folder: of its complete page, next to this one. */
void content_bench(const ls_analysis *a, const ls_found_bench *bench, const char *folder, ls_doc *d);
void content_bench_title(const ls_found_bench *bench, ls_str *out); /* "Strategies: runs/20260101T120000Z" */
/* The result of a benchmark in one sentence or two. */
void content_verdict(const ls_analysis *a, const ls_found_bench *bench, ls_str *out);
/* The verdict of a paired comparison, from ab_report.json; nothing for other benchmarks. */
void content_ab_verdict(const ls_found_bench *bench, ls_str *out);
void content_ab_changes(const ls_found_bench *bench, ls_doc *d); /* what differs between A and B */
void content_groups(const ls_analysis *a, ls_doc *d);            /* the table of settings */
bool content_draw(const ls_analysis *a, ls_doc *d, void (*fill)(const ls_analysis *a, ls_chart *c), const char *words);
void content_provenance(const ls_analysis *a, ls_doc *d);
void content_transport(const ls_analysis *a, ls_doc *d);
void content_findings(const ls_analysis *a, ls_doc *d);
void content_step_times(const ls_analysis *a, ls_doc *d);
void content_losses(const ls_analysis *a, ls_doc *d);
void content_pivot(const ls_analysis *a, ls_doc *d);
void content_translation(const ls_analysis *a, ls_doc *d);
void content_interruptions(const ls_analysis *a, ls_doc *d);
/* The same for a terminal: a table of the runs that were interrupted; nothing if there are none. */
void content_interruptions_table(const ls_run_set *set, ls_str *out);
void content_interruptions_json(const ls_run *r, ls_jsonw *w); /* an object, or null */
void content_alone(const ls_analysis *a, ls_doc *d);
const char *content_estimate_text(char buf[96], const ls_estimate *e, int decimals); /* "12.3 ± 0.4" */
bool content_has_wall(
    const ls_analysis *a); /* every run that was neither profiled nor interrupted recorded its wall time */
const char *content_part_words(int part);                      /* of the waterfall */
char *content_json_text(char *buf, size_t n, const json_t *v); /* as JSON on one line, cut where it is longer */
const char *content_wait_words(void);                          /* how waits are charged, and what hidden time is */
/* A sentence if the collectives of a run are not those of all its steps. */
void content_counted_steps(const char *name, const ls_run *r, ls_doc *d);

void chart_loss(const ls_analysis *a, ls_chart *c);
void chart_epoch_loss(const ls_analysis *a, ls_chart *c);
void chart_throughput(const ls_analysis *a, ls_chart *c);
void chart_time(const ls_analysis *a, ls_chart *c);
void chart_speedup(const ls_analysis *a, ls_chart *c);
void chart_efficiency(const ls_analysis *a, ls_chart *c);
void chart_step_split(const ls_analysis *a, ls_chart *c);
void chart_waterfall(const ls_analysis *a, ls_chart *c);
void chart_comm(const ls_analysis *a, ls_chart *c);
void chart_memory(const ls_analysis *a, ls_chart *c);
void chart_peak(const ls_analysis *a, ls_chart *c);
void chart_utilisation(const ls_analysis *a, ls_chart *c);
void chart_tflops(const ls_analysis *a, ls_chart *c);
void chart_attempts(const ls_analysis *a, ls_chart *c);
void chart_gantt(const ls_run *r, double end, ls_chart *c); /* end: of the axis of all of them */

#endif
