"""Results as a table, as Markdown and as JSON; the machine they are from."""

import json
import os
import platform
import statistics


def number(value):
    """Three significant digits, whole numbers whole."""
    if value == int(value) and abs(value) < 1e12:
        return "{:,}".format(int(value))
    if abs(value) >= 100:
        return "{:,.0f}".format(value)
    return "%.3g" % value


def spread(values):
    """Half the distance between the quartiles, in per cent of the median."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    median = statistics.median(values)
    return 50 * (high - low) / median if median else 0.0


def met_text(result):
    return {None: "", True: "yes", False: "NO"}[result.met]


def goal_text(row):
    if row.exact:
        return "= 1"
    return "" if row.goal is None else ">= " + number(row.goal)


HEADINGS = ("name", "ours", "peer", "unit", "ratio", "goal", "met", "peer is")


def cells(result):
    return (
        result.row.name,
        number(result.ours_median),
        number(result.peer_median),
        result.row.unit,
        number(result.ratio),
        goal_text(result.row),
        met_text(result),
        result.row.peer_name,
    )


def table(results):
    """Text with aligned columns; the numbers to the right."""
    lines = [HEADINGS] + [cells(result) for result in results]
    widths = [max(map(len, column)) for column in zip(*lines)]
    right = {1, 2, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def markdown(results, machine):
    lines = [
        "%s, %d cores, %s, kernels for %s; torch %s; %s; load average %.2f"
        % (
            machine["cpu"],
            machine["cores"],
            machine["memory"],
            machine["kernel_target"],
            machine["torch"],
            machine["date"],
            machine["load_average"],
        ),
        "",
        "| benchmark | ours | peer | unit | spread | ratio | goal | met "
        "| peer is |",
        "|---|--:|--:|---|--:|--:|---|---|---|",
    ]
    for result in results:
        name, ours, peer, unit, ratio, goal, met, peer_name = cells(result)
        spreads = "%.0f%%, %.0f%%" % (spread(result.ours), spread(result.peer))
        lines.append(
            "| "
            + " | ".join(
                ("`%s`" % name, ours, peer, unit, spreads, ratio, goal, met)
                + (peer_name,)
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


BEGIN = "<!-- begin: ./bench.sh --markdown -->\n"
END = "<!-- end -->\n"


def write_markdown(path, text, begin=BEGIN):
    """Writes the file, or if it has `begin` and END, what is between them."""
    head, tail = "", ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            old = file.read()
        before, found, rest = old.partition(begin)
        _, end, after = rest.partition(END)
        if found and end:
            head, tail = before + found + "\n", "\n" + end + after
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + text + tail)


def as_json(results, machine):
    """The document that --json writes."""
    return {
        "machine": machine,
        "benchmarks": [
            {
                "name": result.row.name,
                "ours": result.ours_median,
                "peer": result.peer_median,
                "peer_name": result.row.peer_name,
                "unit": result.row.unit,
                "ratio": result.ratio,
                "goal": result.row.goal,
                "met": result.met,
                "samples": {
                    "ours": list(result.ours),
                    "peer": list(result.peer),
                },
            }
            for result in results
        ],
    }


def write_json(path, results, machine):
    """Replaces the file at once or not at all."""
    partial = "%s.%d.partial" % (path, os.getpid())
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(as_json(results, machine), file, indent=1)
        file.write("\n")
    os.replace(partial, path)


def _first(path, key):
    """The value after `key :` in a file such as /proc/cpuinfo."""
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return ""


def _huge_pages():
    try:
        path = "/sys/kernel/mm/transparent_hugepage/enabled"
        with open(path, encoding="utf-8") as file:
            return file.read().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return "unknown"


def describe_machine(date, pinned_to, kernel_target, torch_version):
    kilobytes = _first("/proc/meminfo", "MemTotal").split(" ")[0]
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory": "%.0f GiB" % (int(kilobytes or 0) / 2**20),
        "cache": _first("/proc/cpuinfo", "cache size"),
        "huge_pages": _huge_pages(),
        "system": platform.platform(),
        "pinned_to": pinned_to,
        "kernel_target": kernel_target,
        "python": platform.python_version(),
        "torch": torch_version,
        "date": date,
        "load_average": os.getloadavg()[0],
    }
