"""Results as JSON lines and as a table in Markdown."""

import datetime
import json
import math
import os
import platform

# In a page, in front of the table; report.END is behind it.
BEGIN = "<!-- begin: tests/bench/recovery.py --markdown -->\n"

KINDS = {
    "kill": "SIGKILL of a worker",
    "two": "SIGKILL of two at once",
    "stop": "SIGSTOP of a worker",
    "newcomer": "a newcomer's cost",
    "coordinator": "the coordinator killed",
    "both": "coordinator and worker killed",
    "trace": "failure trace",
}


def percentile(values, per_cent):
    """The nearest rank: of 50 values p99 is the greatest. None if there are
    none; values that are None are longer than all others."""
    if not values:
        return None
    ordered = sorted(math.inf if one is None else one for one in values)
    found = ordered[max(0, math.ceil(len(ordered) * per_cent / 100) - 1)]
    return None if found == math.inf else found


def summarised(record):
    """Returns a record with p50, p99 and max, in ms, of its values; None
    where that was not within the limit."""
    values = record["values_ms"]
    return dict(
        record,
        p50=percentile(values, 50),
        p99=percentile(values, 99),
        max=percentile(values, 100),
    )


def milliseconds(value, limit_s):
    if value is None:
        return "> %d s" % limit_s
    if value >= 9999.5:
        return "%.1f s" % (value / 1e3)
    return "%.0f ms" % value


def _cells(record):
    values = record["values_ms"]
    over = sum(one is None for one in values)
    count = "%d" % len(values) + (" (%d not over)" % over if over else "")
    found = summarised(record)
    limit = record["limit_s"]
    times = [
        milliseconds(found[name], limit) if values else "-"
        for name in ("p50", "p99", "max")
    ]
    repeated = record.get("repeated_steps") or []
    return (
        [KINDS[record["kind"]], str(record["ranks"]), record["peer"],
         record["settings"], count]
        + times
        + [str(max(repeated)) if repeated else "", record.get("note", "")]
    )


def table(records):
    """Recovery by kind and size, ours first, as Markdown."""
    order = list(KINDS)
    rows = sorted(
        (one for one in records if "values_ms" in one),
        key=lambda one: (order.index(one["kind"]), one["ranks"]),
    )
    lines = [
        "| failure | processes | | settings | failures | p50 | p99 | maximum "
        "| most steps taken again | |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|---|",
    ]
    lines += ["| " + " | ".join(_cells(one)) + " |" for one in rows]
    return "\n".join(lines) + "\n"


def trace_table(records):
    lines = [
        "| processes | | settings | steps | failures | without | with "
        "| ratio | |",
        "|--:|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for one in records:
        if one.get("kind") != "trace":
            continue
        alone, struck = one["without_s"], one["with_s"]
        ratio = "%.3f" % (struck / alone) if alone and struck else "-"
        seconds = ["%.1f s" % t if t else "not over" for t in (alone, struck)]
        lines.append("| " + " | ".join([
            str(one["ranks"]), one["peer"], one["settings"],
            str(one["steps"]), str(one["failures"]), *seconds, ratio,
            one.get("note", ""),
        ]) + " |")
    return "\n".join(lines) + "\n"


def markdown(machine, records):
    head = (
        "%(cpu)s, %(cores)d cores, %(memory)s; torch %(torch)s, torchft "
        "%(torchft)s, Coxswain %(coxswain)s; %(date)s; load average "
        "%(load_average).1f at the start; `%(command)s`\n" % machine
    )
    parts = [head]
    if any("values_ms" in one for one in records):
        parts.append(table(records))
    if any(one.get("kind") == "trace" for one in records):
        parts.append(trace_table(records))
    return "\n".join(parts)


def describe_machine(command, versions):
    """versions: of what is measured, by name."""
    def first(path, key):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
        return ""

    kilobytes = int(first("/proc/meminfo", "MemTotal").split(" ")[0])
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "kind": "machine",
        "cpu": first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory": "%.0f GiB" % (kilobytes / 2**20),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
        "load_average": os.getloadavg()[0],
        "command": command,
        **versions,
    }


def append_line(path, record):
    with open(path, "a", encoding="utf-8") as file:
        json.dump(record, file)
        file.write("\n")


def read_lines(paths):
    """Returns the first machine, and all records but machines."""
    machine, records = None, []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if record["kind"] != "machine":
                    records.append(record)
                elif machine is None:
                    machine = record
    return machine, records
