#include "run/metrics.h"
#include "run/jsonl.h"

const char *const ls_row_name[LS_N_ROW_KEY] = {
#define X(name, key, type) #key,
    LS_ROW_LIST(X)
#undef X
};

bool ls_metrics_read(const json_t *line, ls_metrics_row *row)
{
    row->has = 0;
    for (int k = 0; k < LS_N_ROW_KEY; k++) {
        const json_t *v = json_object_get(line, ls_row_name[k]);
        row->x[k] = ls_json_real_at(line, ls_row_name[k]);
        if (json_is_number(v) || json_is_null(v)) row->has |= 1u << k;
    }
    row->step = ls_metrics_int(row, LS_ROW_STEP);
    return row->step >= 0;
}

int64_t ls_metrics_int(const ls_metrics_row *row, ls_row_key k)
{
    return row->x[k] >= 0 && row->x[k] < 9e15 ? (int64_t)row->x[k] : -1;
}

void ls_metrics_write(const ls_metrics_row *row, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 0);
    ls_jsonw_open(&w, '{');
#define WRITE_int(key, x)  ls_jsonw_put_int(&w, key, (int64_t)(x))
#define WRITE_real(key, x) ls_jsonw_put_real(&w, key, x)
#define WRITE_bool(key, x) ls_jsonw_put_bool(&w, key, (x) != 0)
#define X(name, key, type) \
    if (ls_metrics_has(row, LS_ROW_##name)) WRITE_##type(#key, row->x[LS_ROW_##name]);
    LS_ROW_LIST(X)
#undef X
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}
