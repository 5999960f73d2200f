"""The words that a run and the controller exchange over the channel (events up, instructions down).

Every frame is one JSON object with a ``type``:

| type | sent by | other fields |
|---|---|---|
| hello | run | ``protocol``, ``newest``, ``run`` (id), ``token``, ``session``, ``clock`` |
| welcome | controller | ``acked``: the last event handled, 0 if none; ``protocol`` |
| event | run | ``seq`` (1, 2, ...), ``at`` (Unix seconds), ``clock``, ``kind`` and ``data`` |
| ack | controller | ``seq``: every event up to this number has been handled |
| instruction | controller | ``id``, ``kind`` and ``data`` |
| heard | run | ``id``: this instruction has arrived, and need not be sent again |

``clock`` is when that happened in seconds, by a clock of the run that nobody sets: so the controller knows how long ago
it was, whatever the clock of the run's machine shows. It may be left out.

Events are numbered by the run, with gaps where a newer event made an older one pointless. The run sends again
whatever was not acknowledged; the controller skips the numbers that it has handled. Instructions are idempotent,
so that they are merely sent again until they are heard.

Of an event's data the controller takes the fields named below, as far as their values make sense: numbers are finite
and within their range, texts and tables of bounded length. It leaves out the rest, and events of other kinds, without
a word: another version of the run side may say more.

The two sides may be of different versions: a worker is upgraded, or rolled back, while its runs train. A run says the
oldest version that it speaks (``protocol``) and the newest, the controller the newest that both speak (1 without a
word). Each speaks the version before, too, and ignores frames, kinds and fields that it does not know. Version 2: a
controller ignores frames of a type that it does not know; before, it ended the connection for good.

This module is shared by both sides and imports nothing.
"""

from __future__ import annotations

# What follows is also in docs/reference/channel.md. --8<-- [start:words]
PROTOCOL_VERSION = 2
OLDEST_PROTOCOL = 1  # that is still spoken
MAX_FRAME_BYTES = 256 * 1024  # neither side sends or accepts more

# Environment variables that the driver sets for a run.
ENV_RUN_ID = "PREFECT_GPU_RUN_ID"
ENV_TOKEN = "PREFECT_GPU_TOKEN"
ENV_CHANNEL = "PREFECT_GPU_CHANNEL"  # ws://host:port of the controller that launched the run
ENV_CHANNEL_FILE = "PREFECT_GPU_CHANNEL_FILE"  # JSON {"url": ...}, read again at every reconnection
ENV_DEVICES = "PREFECT_GPU_DEVICES"  # JSON list of {"id", "kind", "memory_bytes", "virtual"}
ENV_CPUS = "PREFECT_GPU_CPUS"  # core numbers, "0,1"
ENV_CHECKPOINTS = "PREFECT_GPU_CHECKPOINTS"  # a folder or s3://bucket/prefix that belongs to this run alone
ENV_CREDENTIALS = "PREFECT_GPU_S3_CREDENTIALS"  # JSON, as STS gives them: for this place alone, and for a while
ENV_CREDENTIALS_FILE = "PREFECT_GPU_S3_CREDENTIALS_FILE"  # where newer ones will be
ENV_SAVED = "PREFECT_GPU_SAVED"  # the step of the checkpoint that the run had when it was stopped before
ENV_POOL = "PREFECT_GPU_POOL"  # the id of its pool, which its checkpoints are marked with
ENV_GATED = "PREFECT_GPU_GATED"  # "1": wait in ready() until the gate opens
ENV_LOCKS = "PREFECT_GPU_LOCKS"  # JSON list of files, one for each device: locked while the run trains
ENV_SHARED = "PREFECT_GPU_SHARED"  # "1": other runs may train on the same devices
ENV_MEMORY = "PREFECT_GPU_MEMORY"  # bytes granted on each device; not set for a run that has its devices alone
ENV_ROLE = "PREFECT_GPU_ROLE"  # in a gang: "worker", or "server" (a parameter server, without a device)
ENV_WORKERS = "PREFECT_GPU_WORKERS"  # in a gang: how many workers; their ranks come first
ENV_SERVERS = "PREFECT_GPU_SERVERS"  # in a gang: how many parameter servers
ENV_RESTORES_ONLY = "PREFECT_GPU_RESTORES_ONLY"  # "1": another instance saves the checkpoints of the gang
ENV_TRIAL = "PREFECT_GPU_TRIAL"  # which trial of which study the run is; see training/trial.py
ENV_BATCH_SIZE = (
    "PREFECT_GPU_BATCH_SIZE"  # "256/64": samples of the batch that the pool has chosen, and of the smallest
)
ENV_KEEP_BEST = "PREFECT_GPU_KEEP_BEST"  # "1": the run may be ended early, so its best checkpoint is kept
ENV_STAYS = "PREFECT_GPU_STAYS"  # "1": the run is not preemptible, so its user's wish to suspend it is refused

# Kinds of event.
PHASE = "phase"  # {"phase": one of PHASES, "step", "steps"?, "batch_size"?, "features"?, "waiting"?: true}
#   "waiting" comes with a second "preparing": everything is prepared, and the run waits at the gate.
PROGRESS = "progress"  # {"step", "steps"?, "loss"?, "metrics"?, "losses": [[step, loss], ...], "steps_per_s"?,
#   "nonfinite_step"?, "batches"?, "noise_scale"?}; "step" counts finished steps; "losses" are the points since the last
#   such event. Where the pool chooses the batch, "step" is in steps of the smallest one, "batches" how many were done
#   since training began, and "noise_scale" the gradient's, in samples.
USAGE = "usage"  # {"cpu_fraction"? (in cores: 1.5 is one and a half), "rss_bytes"?, "rss_peak_bytes"?,
#   "net_bytes_per_s"? (of the network namespace), "device_util"? (0..1), "device_memory_bytes"?}
OUT_OF_MEMORY = "out_of_memory"  # {"error"}: the try that ends now had not memory enough
CHECKPOINT = "checkpoint"  # {"step", "path", "bytes", "seconds", "last"?, "unasked"?}, or {"step", "error", "last"?,
#   "unasked"?} when it could not be saved; "last": true comes with the last step: the run is about to end by itself.
#   "unasked": true comes where nobody's wish for a checkpoint had arrived: the run goes on, and one that was asked for
#   is still to come.

PREPARING, TRAINING, SAVING, FINISHED = "preparing", "training", "saving", "finished"
PHASES = (PREPARING, TRAINING, SAVING, FINISHED)

# Kinds of instruction.
OPEN_GATE = "open_gate"  # {}
SAVE_CHECKPOINT = "checkpoint"  # {"reason"}
#   To move or resize a run: send this, wait for its CHECKPOINT event, then end the process. It waits for that, for ten
#   seconds at most, so that no step is done twice; but not after its last step.
STOP = "stop"  # {"reason"}: save if possible, then leave steps(). The function goes on after its loop (and so
#   uploads and completes): this is for "enough", not for "carry on elsewhere".
USE_CPUS = "use_cpus"  # {"cpus": [0, 1]}
GO_ON = "go_on"  # {}: the user suspended the run, which was refused: Prefect's engine must not end it for that
SET_SHARE = "share"  # {"weight", "reason"}: train for this part of the time, 0 to 1; 0 is to pause between two steps

# WebSocket close codes (4000-4999 are for applications).
CLOSE_FORGED = 4401  # the token is not the one made for this run
CLOSE_REUSED = 4409  # the token is in use by another process
CLOSE_MALFORMED = 4400  # a frame was not what this page says
CLOSE_OVER = 4410  # the run is over, or was never known
# --8<-- [end:words]
