"""Reads the event files under events/ with TensorBoard's own reader and writes
what it found to events.json, for TestTensorBoardReadsOurFiles.

    go test ./internal/monitor -run TensorBoardReads -update
    python internal/monitor/testdata/read_events.py

Made with tensorboard 2.21.0.
"""

import json
import pathlib

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

here = pathlib.Path(__file__).parent
events = EventAccumulator(str(here / "events" / "job"))
events.Reload()
found = {}
for tag in events.Tags()["scalars"]:
    found[tag] = [[e.step, str(e.value) if e.value in (float("inf"), float("-inf")) else e.value] for e in events.Scalars(tag)]
(here / "events.json").write_text(json.dumps(found, indent=1) + "\n")
