#!/usr/bin/env bash
# Workers with the variables of torchrun on several hosts, over TCP (LOCKSTEP_HOST_ID divides this machine): every collective equals the tree computed
# serially; training gives the bits of one worker, also over NCCL; a killed rank ends the run with exit code 4. On one host: a process that holds the
# socket, sends nothing or dies does not keep the others past the limit.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
all=${LS_TEST_ALL:-0}

layouts=("2 1"); [ "$all" = 1 ] && layouts+=("2 2" "1 1" "1 2 1" "1 1 1 1 1" "4 4" "3 3" "2 2 2 2")
for l in "${layouts[@]}"; do
  ranks tool "$l" "$LS_BUILD/mpi_tool" || bad "collectives on hosts of $l: $(grep -h mpi_tool "$SCRATCH"/tool.? | head -3)"
  # shellcheck disable=SC2086
  set -- $l
  grep -q "on $# hosts agree" "$SCRATCH/tool.0" || bad "hosts of $l: $(cat "$SCRATCH/tool.0")"
done
[ "$all" != 1 ] || ranks tool "1 1" "$LS_BUILD/mpi_tool" 700001 || bad "several chunks: $(grep -h mpi_tool "$SCRATCH"/tool.? | head -3)"

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
base=(train --data "$SCRATCH/d" --model tiny --seq_length 64 --micro_batch_size_per_gpu 1 --global_batch_size 8 --dropout 0.1 --lr 1e-3
      --max_val_steps 1)
steps=(--max_steps 3)
"$LOCKSTEP" "${base[@]}" "${steps[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/one.log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/one.log")"
trainings=("2 2:--strategy ddp" "2 2:--strategy zero3" "1 1:--pp 2")
[ "$all" = 1 ] && trainings+=("1 1:--strategy dp" "2 2:--strategy zero1" "2 2:--strategy zero2" "2 2:--pp 2 --schedule zb" "1 3:--pp 2 --strategy zero1")
for t in "${trainings[@]}"; do
  # shellcheck disable=SC2086
  ranks run "${t%%:*}" "$LOCKSTEP" "${base[@]}" "${steps[@]}" ${t#*:} --checkpoint_path "$SCRATCH/run" || bad "$t: $(tail -n 2 "$SCRATCH"/run.?)"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/run/epoch-1/model.safetensors"
  [ "$t" != "${trainings[0]}" ] || mv "$SCRATCH/run" "$SCRATCH/ddp"
  rm -rf "$SCRATCH/run"
done
python3 - "$SCRATCH/ddp" <<'PY' || bad "the files of 4 workers on 2 hosts have other numbers"
import json, sys
l = json.load(open(sys.argv[1] + "/launcher_metadata.json"))
assert l["world_size"] == 4 and l["lockstep"]["backend"] == "tcp" and l["lockstep"]["hosts"] == 2, l
assert [w["local_rank"] for w in l["lockstep"]["workers"]] == [0, 1, 0, 1], l
# 2 hosts x 2 workers: each of them sends 2 (H-1)/H of its half of the buffers to the other host
c = json.load(open(sys.argv[1] + "/training_metrics.json"))["lockstep"]["comm"]["all_reduce"]
assert abs(c["bytes_to_other_hosts"] - 4 * c["elements"] / 2) <= 4 * c["calls"], c
PY

# NCCL starts over TCP: its id travels there
if [ -f "$LS_BUILD/emu_nccl/lockstep_cuda.so" ] && [ -f "$LS_BUILD/emu_nccl/lockstep_nccl.so" ]; then
  gpu=(train --train_data_path "$SCRATCH/d/train.bin" --model tiny --num_layers 2 --seq_length 8 --micro_batch_size_per_gpu 1 --global_batch_size 2
       --max_steps 2 --threads 1 --device cuda --precision fp32)
  export LS_PLUGIN_DIR=$LS_BUILD/emu_nccl XDG_CACHE_HOME=$SCRATCH/cache LS_EMU_DEVICES=2
  "$LOCKSTEP" "${gpu[@]}" --checkpoint_path "$SCRATCH/gpu1" >"$SCRATCH/log" 2>&1 || bad "one device: $(tail -3 "$SCRATCH/log")"
  ranks gpu "1 1" sh -c 'exec "$@" --device cuda:$RANK' _ "$LOCKSTEP" "${gpu[@]}" --comm nccl --checkpoint_path "$SCRATCH/gpu2" ||
    bad "NCCL over TCP: $(tail -n 2 "$SCRATCH"/gpu.?)"
  same "$SCRATCH/gpu1/epoch-1/model.safetensors" "$SCRATCH/gpu2/epoch-1/model.safetensors"
  grep -q '"backend": *"nccl"' "$SCRATCH/gpu2/training_metrics.json" || bad "not over NCCL"
  unset LS_PLUGIN_DIR
fi

# kill -9 of a rank: the others, on its host and on the other one, end with 4 and name it
ranks killed "2 2" "$LOCKSTEP" "${base[@]}" --epochs 200 --max_steps 100000 --comm_timeout 400 --checkpoint_path "$SCRATCH/killed" &
job=$!
await $job grep -qs "step 10/" "$SCRATCH/killed.0" || bad "no step 10: $(tail -n 3 "$SCRATCH/killed.0")"
victim=$((RANDOM % 4))
kill -9 "$(cat "$SCRATCH/killed.$victim.pid")"
begin=$(date +%s); wait $job
[ $(($(date +%s) - begin)) -lt 30 ] || bad "kill -9 of rank $victim: the others took $(($(date +%s) - begin)) s"
[ "$(cat "$SCRATCH"/killed.?.code | sort | tr '\n' ' ')" = "137 4 4 4 " ] || bad "kill -9: exit codes $(cat "$SCRATCH"/killed.?.code | tr '\n' ' ')"
grep -qE "connection with rank $victim on .* was lost|rank $victim on .* exited" "$SCRATCH"/killed.? || bad "no rank names rank $victim: $(tail -n 2 "$SCRATCH"/killed.?)"

# what cannot work
expect 2 "MASTER_ADDR is not set" env -u MASTER_ADDR RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x"
expect 2 "MASTER_PORT is 'x'" env MASTER_ADDR=127.0.0.1 MASTER_PORT=x RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x"
expect 2 "MASTER_PORT is 'abc'" timeout 20 env MASTER_ADDR=127.0.0.1 MASTER_PORT=abc RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x"
expect 2 "LOCAL_WORLD_SIZE" env RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x"
expect 2 "comm tcp" "$LOCKSTEP" "${base[@]}" -n 2 --comm tcp --checkpoint_path "$SCRATCH/x"
expect 2 "comm local" env MASTER_ADDR=127.0.0.1 RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$LOCKSTEP" "${base[@]}" --comm local --checkpoint_path "$SCRATCH/x"
MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) expect 4 "ranks 1, 2 and 3 of 4 did not connect within 1 s" env RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 \
  "$LOCKSTEP" "${base[@]}" --comm_timeout 1 --checkpoint_path "$SCRATCH/x"
# the refusal of a token is reported, also by a rank whose last try came after rank 0 had ended
MASTER_PORT=$(free_port)
export MASTER_ADDR=127.0.0.1 MASTER_PORT
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 LOCKSTEP_TOKEN=one "$LOCKSTEP" "${base[@]}" --comm_timeout 2 --checkpoint_path "$SCRATCH/x" >/dev/null 2>&1 &
expect 4 "rank 1 could not connect .*another LOCKSTEP_TOKEN" env RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 LOCKSTEP_TOKEN=two \
  "$LOCKSTEP" "${base[@]}" --comm_timeout 4 --checkpoint_path "$SCRATCH/x"
wait
unset MASTER_ADDR MASTER_PORT

# one host: strangers at the socket. A name is an abstract socket: lockstep.<uid>.<port>.<run>.<k>
python3 - "$LOCKSTEP" "${base[@]}" --max_steps 1 --comm_timeout 4 --checkpoint_path "$SCRATCH/here" <<'PY' || bad "strangers at the socket of one host"
import os, socket, subprocess, sys, time
port = str(10000 + os.getpid() % 20000)
def worker(rank, size):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size), MASTER_PORT=port)
    return subprocess.Popen(sys.argv[1:] + ["--global_batch_size", str(4 * size)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
def name(uid, k=0): return f"\0lockstep.{uid}.{port}..{k}"
def out(p, limit): return p.communicate(timeout=limit)[0]
me = os.getuid()
# processes that connect and send nothing, or garbage
zero = worker(0, 2)
held = []
while not held:
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(name(me)); held.append(s)
    except ConnectionRefusedError: time.sleep(0.05)
for i in range(80):
    s = socket.socket(socket.AF_UNIX); s.connect(name(me)); held.append(s)
    if i % 2: s.send(os.urandom(100))
one = worker(1, 2)
texts = out(zero, 60), out(one, 60)
assert zero.returncode == 0 and one.returncode == 0, texts
# a worker that never comes, one that dies: named, within the limit
begin = time.time()
zero, one = worker(0, 3), worker(1, 3)
texts = out(zero, 60), out(one, 60)
assert zero.returncode == 4 and one.returncode == 4 and "rank 2 of 3 did not connect within 4 s" in texts[0], texts
assert time.time() - begin < 15, time.time() - begin
zero, one = worker(0, 3), worker(1, 3)
time.sleep(1); one.kill(); one.wait()
begin = time.time()
text = out(zero, 60)
assert zero.returncode == 4 and "rank 1" in text and "exited during start-up" in text and time.time() - begin < 3, text
# a process of another user holds the name, and hands out whatever it likes
if me == 0:
    code = ("import array,os,socket,sys\nos.setgid(65534)\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1].replace('@','\\0'))\n"
            "s.listen(9)\nprint('ready',flush=True)\nfd=os.memfd_create('x')\nos.ftruncate(fd,1<<30)\n"
            "while True:\n  c,_=s.accept()\n  try: c.sendmsg([b'x'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[fd]))])\n  except OSError: pass\n")
    thief = subprocess.Popen([sys.executable, "-c", code, name(0).replace("\0", "@")], stdout=subprocess.PIPE, text=True)
    assert thief.stdout.readline() == "ready\n"
    one = worker(1, 2); time.sleep(0.3); zero = worker(0, 2)
    texts = out(zero, 60), out(one, 60)
    thief.kill()
    assert zero.returncode == 0 and one.returncode == 0 and "held by a process of uid 65534" in texts[0], texts
else: print("not root: no process of another user to try")
PY
done_tests
