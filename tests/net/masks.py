"""What differs from one run or one machine to the next, and so is not compared. First match wins.

A rule is (files, what, mark, why). files: patterns of names, separated by blanks (a command's output is COMMAND.stdout or COMMAND.stderr). what: `key:REGEX`, the
whole path of a value in JSON, or `text:REGEX`, whose groups (else all of it) are replaced. The type of a masked value stays: <seconds> is a real number,
<seconds int> a whole one, "<time>" a string; null, true and false are marked as such.

Losses, gradients and weights are compared with all their digits: runs use one set of kernels that every CPU has (LS_SIMD=generic, LS_GEMM=plain), one
thread, and no fused operations.
"""
import re
import zlib

JSON = "*.json *.jsonl *.stdout"
TEXT = "*.stdout *.stderr *.log *.err *.out *.txt"
NUMBER = r"[+-]?\d[\d.,e+-]*"
RULES = [
    # clocks
    (JSON, r"key:(.*[.\]])?(time|dropped_until)_unix_ms", "ms", "wall clock"),
    (JSON, r"key:(.*[.\]])?(timestamp_utc|generated_at_utc)", "time", "wall clock"),
    (JSON, r"key:run_id", "id", "wall clock and random digits"),
    (TEXT, r"text:\b(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ)", "time", "wall clock"),
    ("*/drill.faults", r"text:^[\d.]+", "seconds", "monotonic clock"),
    # measured times and rates
    ("*/timings.json", r"key:(.*[.\]])?(epoch_time|total_time|wall_time|(step|update|dataload)_(mean|p50|p95))", "seconds", "measured"),
    (JSON, r"key:(.*[.\]])?(\w+_)?tokens_per_sec(_\w+)?", "rate", "measured"),
    (JSON, r"key:(.*[.\]])?\w*(?<!backoff)(_sec|_sec_per_step|_seconds)", "seconds", "measured"),
    ("drill.stdout", r"key:rows\[\]\.lost_steps", "steps", "whether the other worker has finished the step of the fault"),
    ("drill.stdout prepare.stdout", r"key:seconds", "seconds", "measured"),
    ("*/rank?_results_epoch?.json", r"key:training_time", "seconds", "measured"),
    (JSON, r"key:lockstep\.pipeline\.(.*[.\]])?bubble_(measured|predicted|last_step|last_step_replayed)", "share", "from measured times"),
    (JSON, r"key:(.*[.\]])?(tflops|busbw_bytes_per_sec|cpu_utilisation)", "rate", "measured"),
    (JSON, r"key:(.*[.\]])?step_split\.\w+", "seconds", "measured"),
    ("*/profiles/trace.json", r"key:traceEvents\[\]\.(ts|dur)", "us", "measured"),
    (JSON, r"key:(.*[.\]])?clock_(offset|error)_ns", "ns", "measured"),
    ("*/profile_summary.json", r"key:(.*\.)?nvtx_top5\[\]\.(name|time_percent|total_time|raw)", "measured", "the longest ranges, in the order of their measured times"),
    ("*/profile_summary.json", r"key:lockstep\.units\[\]\.(name|calls)", "measured", "in the order of measured times"),
    ("*/profile_summary.json", r"key:.*allreduce_gradients_over_20pct", "measured", "from measured times"),
    ("*/profiles/trace.json", r"key:traceEvents\[\]\.args\.exposed communication \(ms\)", "ms", "measured"),
    ("*/pipeline.json", r"key:(rows|simulated)\[\]\.(begin|end)", "seconds", "measured"),
    ("*_elapsed_time_ms_*.csv *_tokens_per_sec.csv", rf"text:^\d+,({NUMBER})", "measured", "measured"),
    ("events/*", rf"text:(?:tokens_per_sec|elapsed_time\S*) ({NUMBER})$", "measured", "measured"),
    # the machine and the build
    (JSON, r"key:(.*[.\]])?(host|hostname|rank0_host|hosts\[\])", "host", "the machine"),
    ("*/training_metrics.json", r"key:host\.os", "os", "the machine"),
    ("*/ranks.jsonl", r"key:(pid|pid_namespace)", "pid", "the process"),
    (JSON, r"key:lockstep\.(version|commit)", "version", "the build"),
    (JSON, r"key:protocol\.(cores|load_average_at_start)", "machine", "the machine"),
    ("*/profiles/trace.json", r"text:\"rank \d+ \((.*)\)\"", "host", "the machine"),
    (TEXT + " *.jsonl", r"text:\bon ([\w.-]+) \(pid (\d+)\)", "machine", "the machine and the process"),
    (TEXT + " *.jsonl", r"text:\(host ([\w.-]+)\)", "host", "the machine"),
    (JSON, r"key:(.*[.\]])?(rss_bytes|peak_rss\w*)", "bytes", "what the system gave the process"),
    (TEXT + " *.jsonl", r"text:\.tmp-step-\d+-(\d+)", "pid", "the process"),
    ("given_up/ranks.jsonl", r"key:phase", "phase", "written at most twice per second: the newest one before the kill may not be there"),
    # GPUs: results of the device, and what NCCL and the driver print of the machine
    ("nccl/*.safetensors", r"text:(?<=bytes of tensors: )\w+", "sha256", "computed by the GPU"),
    ("nccl/*/checksums.json", r"key:files\..*\.(root|blocks\[\])", "hash", "of files with results of the GPU"),
    ("nccl/*.json nccl/*.jsonl", r"key:(.*[.\]])?(\w*loss\w*|grad_norm\w*|norm_(max|last)|(loss|norm)_spread\.(mean|var))", "result", "computed by the GPU"),
    ("nccl/*.json", r"key:lockstep\.(gpu|nccl|compute|device_choice|memory|planned_bytes)\b.*", "gpu", "the GPU, its driver, and memory that depends on them"),
    ("nccl/*/nccl/summary.json", r"key:.*", "nccl", "what NCCL logged of the machine"),
    ("nccl/*.json", r"key:(hardware|env)\.(gpu_name|gpu_count_visible|cuda_version)|computed\.kernels|.*cuda_mem\w*|(.*\.)?cuda_\w+|memory_bytes", "gpu", "the GPU and its driver"),
    ("nccl/*.jsonl", r"key:memory_bytes", "gpu", "the GPU and its driver"),
    ("nccl/*.log nccl/*.xml nccl/*topo*.txt nccl/*ibstat*.txt nccl/*.csv", r"text:[\s\S]+", "all", "text of NCCL, nvidia-smi and ibstat"),
    ("nccl.stderr", r"text:(?<=loss )\S+|(?<=norm )\S+", "result", "computed by the GPU"),
    ("nccl.stderr", r"text:(?:; )(cuda: .*)$", "gpu", "the GPU"),
    ("nccl.stderr", r"text:^(?:memory .*|.*NCCL.*|.*GPU.*)$", "gpu", "the GPU, its memory and its driver"),
    # text
    ("drill.stdout", r"text:^ +\d+  .* (\d+\.\d+ s) .*$", "seconds", "a row of the table"),
    ("measured.stderr", r"text:  (\d.*)$", "measured", "line of a run"),
    ("measured.stdout", r"text:[\s\S]+", "a table", "all of it is measured; the next command prints the same table of fixed numbers"),
    ("train.stdout", r"text:^(?:\d+ |%  )(?: +[\d.]+){8}$", "times of a rank", "measured"),
    ("train.stdout", r"text:^\S.*?(?: +[\d.]+){4}$", "times of an operation", "measured, and the order is that of the times"),
    (TEXT, rf"text:\b(\d+) tokens/s  ({NUMBER}) TFLOP/s  eta (\S+)  mem (\S+ \w+)", "measured", "line of a step"),
    (TEXT, r"text:^epoch .* mean loss \S+  (\S+)$", "seconds", "line of an epoch"),
    (TEXT, rf"text:tokens_per_sec=({NUMBER}) total_wall_time_sec=({NUMBER})", "measured", "RUN_COMPLETE"),
    ("train.stderr", rf"text:bubble ({NUMBER} %) measured, ({NUMBER} %) simulated", "share", "measured"),
    ("train.stderr", rf"text:step time ({NUMBER} s) measured, ({NUMBER} s) simulated", "seconds", "measured"),
    ("train.stdout", rf"text:Training Time(?: =|: average) ({NUMBER})", "seconds", "measured"),
    ("train.stdout", rf"text:Tokens_per_sec(?: =| of all workers: average) ({NUMBER})", "rate", "measured"),
    ("prepare.*", r"text:encoded in (\S+ s) \((\S+ \w+/s)\)(?:, vocabulary trained in (\S+ s))?", "measured", "measured"),
    ("train.stdout *.log", r"text:^Startup: pid=(\d+)", "pid", "the process"),
    ("train.stdout *.log", rf"text:(?<=: )({NUMBER})(?= \||$)", "ms", "wall_clock_breakdown"),
    (TEXT, rf"text:RunningAvgSamplesPerSec=({NUMBER}), CurrSamplesPerSec=({NUMBER}), MemAllocated=({NUMBER})GB, MaxMemAllocated=({NUMBER})GB", "measured", "as DeepSpeed prints it"),
    (TEXT, rf"text:Mem Curr: .*, Mem Peak: ({NUMBER})MB", "MB", "what the system gave the process"),
    (TEXT, rf"text:Time: ({NUMBER}s), Throughput: ({NUMBER})", "measured", "as the scaling study prints it"),
]
# Output of commands whose input has fixed numbers.
FIXED = [
    ("*.html *.md", r"text:\b(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ), lockstep (\S+?)(?:</p>)?$", "now", "wall clock and version"),
    ("*.json *stdout", r"key:(.*[.\]])?(generated_at_utc)", "time", "wall clock"),
    ("*.json *stdout", r"key:protocol\.(cores|load_average_at_start)", "machine", "the machine"),
]
# Lines that several processes write: (files, lines, anchor, why). They are moved to the place after the last anchor before them, else to the end, and sorted.
UNORDERED = [
    ("*/events.jsonl", r'\{"event": "restart"', r'\{"event": "start"', "of the supervisor; the others are of a worker"),
    ("*.log *.stdout", r"Startup: pid=|\[Rank [1-9]\d*\] EXITING", None, "of each worker"),
]
# Lines that are left out.
DROPPED = [
    ("*stderr", r"^note: the machine is busy .*\n", "only on a busy machine"),
]
NAMES = [
    (r"tfevents\.\d+\.[^/]+\.\d+$", "tfevents.<seconds>.<host>.<pid>"),
    (r"nccl_rank_[^/]+_\d+\.log$", "nccl_rank_<host>_<pid>.log"),
    (r"/nccl/(topo|ibstat|gpus)_[^/]+\.(txt|csv)$", r"/nccl/\1_<host>.\2"),
]


def frozen(mark, path, token, k, place, run, setting):
    """A value for a mark, of the type of the token. k: from 0 to 999, differs from place to place; place: how often the path has occurred in the file; run: the number of
    the run. Times of steps are about 1 s, their parts 0.1 s; they differ from setting to setting by up to 30 %, and by 1 % in a setting."""
    if token in ("null", "true", "false"):
        return token
    if token[0] == '"':
        return f'"2026-01-01T00:{run:02}:00Z"' if mark == "time" else f'"20260101T00{run:02}00Z-{run:08x}"' if mark == "id" else f'"{mark}"'
    if mark == "us":
        return "50.5" if path.endswith("dur") else f"{place * 100}.5"
    if any(c in token for c in ".eE"):
        size = 100 if mark == "rate" else 1 if re.search("(step|update)_time", path) else 10 if "wall" in path else 0.1
        return repr(size * (1 + zlib.crc32(setting.encode()) % 7 / 20) * (1 + k / 100000))
    return str((1767225600000 + 60000 * run + 700 * place if mark == "ms" else 2 << 20) + 4096 * k * (mark == "bytes"))
