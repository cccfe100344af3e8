/* content.h - the content of a report: the summary, then one section per question. chart_sets.c makes the charts, summary.c the text. */
#ifndef LS_REPORT_CONTENT_H
#define LS_REPORT_CONTENT_H

#include "report/compare/analysis.h"
#include "report/page/doc.h"

/* Fills a zeroed document; check d->failed. The document borrows from the runs. */
void ls_report_doc(const ls_analysis *a, ls_doc *d);

/* inside the folder */
void content_summary(const ls_analysis *a, ls_doc *d);
void content_provenance(const ls_analysis *a, ls_doc *d);
void content_transport(const ls_analysis *a, ls_doc *d);
void content_findings(const ls_analysis *a, ls_doc *d);
void content_step_times(const ls_analysis *a, ls_doc *d);
void content_losses(const ls_analysis *a, ls_doc *d);
void content_pivot(const ls_analysis *a, ls_doc *d);
void content_translation(const ls_analysis *a, ls_doc *d);
void content_alone(const ls_analysis *a, ls_doc *d);
const char *content_estimate_text(char buf[96], const ls_estimate *e, int decimals); /* "12.3 ± 0.4" */
bool content_has_wall(const ls_analysis *a); /* every run that was not profiled recorded its wall time */
const char *content_part_words(int part);    /* of the waterfall */
char *content_json_text(char *buf, size_t n, const json_t *v); /* as JSON on one line, cut where it is longer */
const char *content_wait_words(void);                          /* how waits are charged, and what hidden time is */

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
void chart_gantt(const ls_run *r, ls_chart *c);

#endif
