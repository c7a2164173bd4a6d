"""Metrics as a scrape has them: name, type, labels, help and buckets."""

from secagg.runtime.metrics import METRICS, PROCESS_METRICS


def test_metrics(golden):
    lines = []
    for metric in sorted(METRICS, key=lambda each: each.name):
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        lines += [f"{metric.name}{labels} {metric.kind.value}", f"  {metric.help}"]
        if metric.buckets:
            lines.append(f"  buckets: {', '.join(map(str, metric.buckets))}")
    lines += ["", "of the process, where the system reports them:"]
    lines += sorted(PROCESS_METRICS)
    golden("metrics.txt", "\n".join(lines) + "\n")
