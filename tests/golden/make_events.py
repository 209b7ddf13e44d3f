"""Writes tests/golden/events.tfevents: four events by tensorboard's own messages and record writer, read back by its own
reader. tests/train/test_events.c writes the same records and compares the bytes. tensorboard 2.21.0, protobuf as it asks for."""
import pathlib
import sys

import tensorboard
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

assert tensorboard.__version__ == "2.21.0", tensorboard.__version__
path = pathlib.Path(__file__).parent / "events.tfevents"


def event(wall, step, values):
    e = Event(wall_time=wall, step=step)
    for tag, v in values:
        e.summary.value.add(tag=tag, simple_value=v)
    return e


events = [
    Event(wall_time=1700000000.0, file_version="brain.Event:2"),
    event(1700000001.25, 1, [("loss", 5.5), ("lr", 0.001), ("grad_norm", 2.25), ("tok_s", 123456.0)]),
    event(1700000002.5, 300, [("loss", 1 / 3), ("lr", 1e-5), ("grad_norm", 0.1), ("tok_s", 1e6), ("mfu", 0.25), ("cr", 4 / 3),
                              ("cr_loss", 0.125)]),
    event(1700000003.75, 300, [("val_loss", 2.5), ("val_cr", float("inf")), ("val_acc", 0.25), ("val_acc_all", 0.75)]),
    event(1700000004.0, 123456789012, [("val_loss", 0.0)]),
]
with open(path, "wb") as f:
    w = RecordWriter(f)
    for e in events:
        w.write(e.SerializeToString(deterministic=True))
    f.flush()


def shown(file):
    for e in EventFileLoader(str(file)).Load():
        yield e.step, e.wall_time, e.file_version, [(v.tag, v.tensor.float_val[0] if v.HasField("tensor") else v.simple_value)
                                                    for v in e.summary.value]


for line in shown(path):
    print(*line)
# A file of kvsmith's own: python3 make_events.py RUN/tb/events.out.tfevents.kvsmith
for file in sys.argv[1:]:
    for line in shown(file):
        print(*line)
