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


KIND_ORDER = list(KINDS)
# What is one after the other where records are merged.
_LISTS = ("values_ms", "repeated_steps", "notes")


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
        + [str(max(repeated)) if repeated else "", shortened(record["notes"])]
    )


def shortened(notes):
    """Of many the first, and how many there were."""
    if not notes:
        return ""
    first = notes[0].replace("|", "/")[:160]
    return first if len(notes) == 1 else "%s; %d such" % (first, len(notes))


def table(records):
    """Recovery, of merged records, as Markdown."""
    lines = [
        "| failure | processes | | settings | failures | p50 | p99 | maximum "
        "| most steps taken again | |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|---|",
    ]
    lines += [
        "| " + " | ".join(_cells(one)) + " |"
        for one in records if "values_ms" in one
    ]
    return "\n".join(lines) + "\n"


def trace_table(records):
    """Failure traces, of merged records, as Markdown."""
    lines = [
        "| processes | | settings | steps | failures | without | with "
        "| ratio | |",
        "|--:|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for one in records:
        if one["kind"] != "trace":
            continue
        alone, struck = one.get("without_s"), one.get("with_s")
        ratio = "%.3f" % (struck / alone) if alone and struck else "-"
        lines.append("| " + " | ".join([
            str(one["ranks"]), one["peer"], one["settings"],
            str(one["steps"]), str(one.get("failures", "-")),
            _seconds(one, "without_s"), _seconds(one, "with_s"), ratio,
            shortened(one["notes"]),
        ]) + " |")
    return "\n".join(lines) + "\n"


def _seconds(record, name):
    if name not in record:
        return "-"
    return "%.1f s" % record[name] if record[name] else "not over"


def markdown(machines, records):
    dates = sorted({one["date"] for one in machines})
    head = (
        "%(cpu)s, %(cores)d cores, %(memory)s; torch %(torch)s, torchft "
        "%(torchft)s, Coxswain %(coxswain)s; %(dates)s; load average "
        "up to %(load).1f at the start; `%(command)s`\n" % dict(
            machines[-1],
            dates=" to ".join(dates[:1] + dates[1:][-1:]),
            load=max(one["load_average"] for one in machines),
        )
    )
    records = merged(records)
    parts = [head]
    if any("values_ms" in one for one in records):
        parts.append(table(records))
    if any(one["kind"] == "trace" for one in records):
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
    """Returns the machines, one of each run, and all other records."""
    machines, records = [], []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                (machines if record["kind"] == "machine" else records).append(
                    record
                )
    return machines, records


def row(record):
    """Returns what all records of one row of a table have in common."""
    return (
        KIND_ORDER.index(record["kind"]), record["ranks"], record["peer"],
        record["settings"], record.get("steps", 0),
    )


def merged(records):
    """Returns a record for each row, of all records of it. Those that were
    measured of something else than the last one are left out."""
    last = {row(one): one["of"] for one in records}
    found = {}
    for one in records:
        if one["of"] != last[row(one)]:
            continue
        whole = found.setdefault(row(one), dict(one, **{
            name: [] for name in _LISTS if name in one
        }))
        for name, value in one.items():
            if name in _LISTS:
                whole[name] = whole[name] + value
            else:
                whole[name] = value
    return [found[key] for key in sorted(found)]
