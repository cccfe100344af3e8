/* Any bytes as a trace file: summed up, or refused with a message that names the file; nothing leaks. */
#include "fuzz.h"
#include "core/mem.h"
#include "report/read/trace_read.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const int64_t live = ls_mem_live();
    trace_facts f = {0};
    const ls_status st = trace_read_text((const char *)data, n, "t.json", &f);
    must(st == LS_OK || (st == LS_E_FORMAT && strstr(ls_err_words(), "t.json")));
    must(st != LS_OK || (f.n_rank > 0 && f.n_rank <= TRACE_MAX_RANK));
    const trace_table *unit = &f.table[TRACE_UNIT];
    for (int i = 0; i < unit->n; i++) must(unit->row[i].calls > 0 && unit->row[i].us >= 0);
    trace_facts_fini(&f);
    must(ls_mem_live() == live);
    return 0;
}
