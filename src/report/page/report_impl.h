/* report_impl.h - parts of a report: runs that are compared with one another, with the benchmark that made them. */
#ifndef LS_REPORT_REPORT_IMPL_H
#define LS_REPORT_REPORT_IMPL_H

#include "report/page/content.h"
#include "report/page/report.h"

typedef struct report_part {
    ls_report_opts o;            /* path: its runs; out: the folder of its page */
    const ls_found_bench *bench; /* NULL: not known */
    bool apart;                  /* without benchmarks below its paths */
    ls_run_set set;
    ls_analysis a;
    ls_report_result r;
} report_part;

/* Reads and compares the runs of a part, and fills its result but for the charts. LS_E_NOMEM alone. */
ls_status report_part_read(report_part *p);
bool report_part_readable(const report_part *p); /* there is something to report */
/* report.html, report.md, scaling_report.json and charts/ of a part. */
ls_status report_part_write(report_part *p);
void report_part_fini(report_part *p);
/* letters, digits and ._- of a text, anything else as one '_' */
void report_slug(const char *text, char *out, size_t cap);
/* report.html and report.md of a document. */
ls_status report_write_doc(const ls_doc *d, const char *out);

/* Several benchmarks: one section and one folder each, and an overview. */
ls_status report_write_sections(const ls_report_opts *o, const ls_found_benches *benches, ls_report_result *r);

#endif
