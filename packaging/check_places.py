#!/usr/bin/env python3
"""Checks the files for containers and clouds as far as that is possible without starting them.

    check_places.py [--crd FILE ...] [--modal]

Dockerfile: instructions, stages, copied paths. Apptainer definition: sections. Kubernetes: names and fields that must agree; with --crd, every
field against the CustomResourceDefinition of MPIJob or JobSet (from the repositories of mpi-operator and jobset). The notebook: its cells, that the
first one states that it was not run, and its shell lines (bash -n). The options of every
`lockstep` command in them against the program's own table, where LOCKSTEP names the program. --modal imports the recipe with the modal package.
Exit code 77: PyYAML is missing.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

try:
    import yaml
except ImportError:
    print("skipped: PyYAML is not installed")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
failures = []


def expect(condition, message):
    if not condition:
        failures.append(message)


# ---- options ----


def check_command(words, where):
    """The long options of `lockstep WORDS` must exist; those after -- belong to another command."""
    program = os.environ.get("LOCKSTEP")
    if not program:
        return
    words = words[: words.index("--")] if "--" in words else words
    for n in (1, 2):  # a command, or a command of a group: bench ab
        page = json.loads(subprocess.run([program, *words[:n], "--help=json"], check=True, capture_output=True, text=True).stdout)
        if "options" in page:
            break
    names = {row["name"].replace("_", "-") for row in page["options"]}
    for word in words[n:]:
        if word.startswith("--") and " " not in word:  # else options for another command, in one word
            expect(word[2:].split("=")[0].replace("_", "-") in names, f"{where}: lockstep {' '.join(words[:n])} has no option {word}")


# ---- Docker ----

INSTRUCTIONS = set("ARG FROM SHELL WORKDIR COPY ENV RUN USER ENTRYPOINT CMD LABEL EXPOSE".split())


def check_dockerfile(path):
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    stages, args = [], set()
    for line in lines:
        word, rest = line.split(None, 1)
        expect(word in INSTRUCTIONS, f"{path}: unknown instruction {word}")
        if word == "ARG":
            args.add(rest.split("=")[0])
        if word == "FROM":
            base, stage = re.fullmatch(r"(\S+) AS ([a-z-]+)", rest).groups()
            for name in re.findall(r"\$\{(\w+)\}", base):
                expect(name in args, f"{path}: FROM {base}: {name} has no default")
            expect(base in stages or "$" in base or ":" in base, f"{path}: FROM {base} has no tag")
            stages.append(stage)
        source = re.match(r"--from=(\S+)", rest) if word == "COPY" else None
        expect(not source or source[1] in stages, f"{path}: COPY --from={source and source[1]}: no such stage")
        if word == "RUN" and "apt-get install" in rest:
            expect("apt-get update" in rest and "rm -rf /var/lib/apt/lists" in rest, f"{path}: apt-get install without update or without cleaning")
            expect("--no-install-recommends" in rest and " -y" in rest, f"{path}: apt-get install needs -y --no-install-recommends")
    expect({"cpu", "cuda", "mpi"} <= set(stages), f"{path}: stages {stages}")


# ---- Apptainer ----

SECTIONS = set("arguments files post environment runscript test labels help setup startscript".split())


def check_definition(path):
    text = path.read_text()
    head = dict(re.findall(r"(?m)^(Bootstrap|From): *(.+)$", text.split("%")[0]))
    expect(set(head) == {"Bootstrap", "From"}, f"{path}: header {head}")
    sections = re.findall(r"(?m)^%(\w+)", text)
    expect(set(sections) <= SECTIONS and len(sections) == len(set(sections)), f"{path}: sections {sections}")
    expect({"post", "runscript", "test"} <= set(sections), f"{path}: sections {sections}")
    arguments = re.search(r"(?ms)^%arguments\n(.*?)^%", text)[1]
    for name in set(re.findall(r"\{\{ *(\w+) *\}\}", text)):
        expect(re.search(rf"(?m)^ +{name}=", arguments), f"{path}: {{{{ {name} }}}} is not in %arguments")


# ---- Kubernetes ----


def check_schema(value, schema, where):
    """OpenAPI v3, as much of it as CRDs use; unknown fields are errors, as with kubectl's strict validation."""
    if schema.get("x-kubernetes-int-or-string"):
        return expect(isinstance(value, (int, str)), f"{where}: {value!r}")
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}
    kind = schema.get("type")
    if kind and not isinstance(value, types[kind]):
        return expect(False, f"{where}: {value!r} is not of type {kind}")
    expect("enum" not in schema or value in schema["enum"], f"{where}: {value!r} is not one of {schema.get('enum')}")
    if isinstance(value, list):
        for i, item in enumerate(value):
            check_schema(item, schema.get("items", {}), f"{where}[{i}]")
    elif isinstance(value, dict) and kind == "object":
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key in schema.get("required", []):
            expect(key in value, f"{where}: {key} is missing")
        for key, item in value.items():
            known = key in fields or rest or schema.get("x-kubernetes-preserve-unknown-fields") or not fields
            expect(known, f"{where}: unknown field {key}")
            check_schema(item, fields.get(key) or (rest if isinstance(rest, dict) else {}), f"{where}.{key}")
    return None


def check_crd(path, document, crd):
    version = document["apiVersion"].split("/")[1]
    rows = [v for v in crd["spec"]["versions"] if v["name"] == version]
    expect(rows, f"{path}: the CRD has no version {version}")
    for row in rows:
        schema = dict(row["schema"]["openAPIV3Schema"])
        schema["properties"] = {**schema["properties"], "metadata": {"type": "object"}}
        check_schema(document, schema, path.name)


def pods(node):
    """All pod specifications below a node."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for child in node.values():
            yield from pods(child)
    elif isinstance(node, list):
        for child in node:
            yield from pods(child)


def check_manifest(path, crds):
    document = yaml.safe_load(path.read_text())
    for key in ("apiVersion", "kind", "metadata", "spec"):
        expect(key in document, f"{path}: no {key}")
    for pod in pods(document):
        volumes = {v["name"] for v in pod.get("volumes", [])}
        for c in pod["containers"]:
            expect(c.get("name") and c.get("image"), f"{path}: a container without name or image")
            for mount in c.get("volumeMounts", []):
                expect(mount["name"] in volumes, f"{path}: volume {mount['name']} is not defined")
            words = [*c.get("command", ["lockstep"]), *c.get("args", [])]
            if "lockstep" in words:
                check_command(words[words.index("lockstep") + 1 :], path.name)
    spec = document["spec"]
    if document["kind"] == "MPIJob":
        roles = spec["mpiReplicaSpecs"]
        args = roles["Launcher"]["template"]["spec"]["containers"][0]["args"]
        workers = roles["Worker"]["replicas"] * spec["slotsPerWorker"]
        expect(args[args.index("-np") + 1] == str(workers), f"{path}: -np is not replicas times slotsPerWorker, {workers}")
    if document["kind"] == "JobSet":
        job, name = spec["replicatedJobs"][0], document["metadata"]["name"]
        inner = job["template"]["spec"]
        env = {e["name"]: e.get("value") for e in inner["template"]["spec"]["containers"][0]["env"]}
        expect(inner["completions"] == inner["parallelism"] == int(env["WORLD_SIZE"]), f"{path}: completions, parallelism and WORLD_SIZE differ")
        expect(env["MASTER_ADDR"] == f"{name}-{job['name']}-0-0.{spec['network']['subdomain']}", f"{path}: MASTER_ADDR is not the name of the first pod")
        expect({"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "LOCKSTEP_TOKEN"} <= set(env), f"{path}: env {sorted(env)}")
    matching = [crd for crd in crds if crd["spec"]["names"]["kind"] == document["kind"]]
    for crd in matching:
        check_crd(path, document, crd)
    return bool(matching)


# ---- notebook ----


def check_notebook(path):
    book = json.loads(path.read_text())
    cells = book["cells"]
    expect((book["nbformat"], book["nbformat_minor"]) == (4, 4), f"{path}: nbformat")
    expect(cells[0]["cell_type"] == "markdown" and "Not run" in "".join(cells[0]["source"]), f"{path}: the first cell does not state that it was not run")
    for cell in cells:
        expect(cell["cell_type"] == "markdown" or cell["outputs"] == [], f"{path}: outputs of a run that nobody made")
        for line in "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []:
            if not line.startswith("!"):
                continue
            shell = line[1:].replace("{REPOSITORY}", "REPOSITORY")
            expect(subprocess.run(["bash", "-n", "-c", shell], capture_output=True).returncode == 0, f"{path}: {line}")
            words = shlex.split(shell)
            if words[0] == "lockstep":
                check_command(words[1:], path.name)
            if words[0].startswith(("./", "perf/")):
                expect(os.access(HERE.parent / words[0], os.X_OK), f"{path}: no {words[0]}")


# ---- Modal ----


def check_modal(path, run):
    compile(path.read_text(), str(path), "exec")
    if run:
        spec = importlib.util.spec_from_file_location("recipe", path)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--crd", nargs="*", default=[])
    parser.add_argument("--modal", action="store_true")
    args = parser.parse_args()
    crds = [c for f in args.crd for c in yaml.safe_load_all(Path(f).read_text()) if c and c.get("kind") == "CustomResourceDefinition"]
    check_dockerfile(HERE / "docker/Dockerfile")
    check_definition(HERE / "apptainer/lockstep.def")
    full = sum(check_manifest(p, crds) for p in sorted((HERE / "kubernetes").glob("*.yaml")))
    check_notebook(HERE / "notebook/t4.ipynb")
    check_modal(HERE / "modal/lockstep_modal.py", args.modal)
    for message in failures:
        print("FAILED:", message)
    print(f"places: {len(failures)} failures; manifests compared with a CRD: {full}; Modal recipe imported: {'yes' if args.modal else 'no'}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
