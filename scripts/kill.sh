#!/usr/bin/env bash
# Kills a training with SIGKILL at random moments, resumes it each time with
# -resume auto, and compares what it leaves in the end with an uninterrupted one.
#
#	scripts/kill.sh [KILLS] [SEED]      # 50 kills by default
#
# The training is small and saves a checkpoint at every second step, synchronously and
# asynchronously in turn, at another world size after each kill, so that kills land in
# saves as often as between them.
set -euo pipefail
cd "$(dirname "$0")/.."
kills=${1:-50}
RANDOM=${2:-1}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/train" ./cmd/train

train() { (exec_train "$@"); } # train OUT args...

exec_train() { # becomes the program, so that a kill hits it and not a shell
  local out=$1
  shift
  exec "$work/train" -config configs/zero2.toml -resume auto -out "$out" -quiet -steps 100 \
    -set data.kind=procedural -set data.train_samples=512 -set data.image_size=16 -set model.sample_size=16 \
    -set 'model.block_out_channels=[16,16,16]' -set train_batch_size=16 -set train_micro_batch_size_per_gpu=2 \
    -set scheduler.params.total_num_steps=100 -set diffusion.ema_decay=0.99 -set run.checkpoint_every=2 \
    -set run.eval_every=0 -set run.sample_every=0 -set run.sample_count=4 -set diffusion.sample_steps=4 -set run.eval_samples=16 "$@"
}

sum() { # what a run leaves that must not depend on kills
  local out=$1 run=$1/unet
  cat "$run/diffusion_pytorch_model.safetensors" "$out"/csv/*/*train_loss.csv "$out"/csv/*/*grad_norm.csv "$out/samples/step-000100.png" | sha256sum
}

echo "uninterrupted run"
train "$work/whole" -world 2
want=$(sum "$work/whole")

worlds=(1 2 4)
landed=0 finished=0 damaged=0 saving=0
out=$work/killed
for ((n = 0; landed < kills; n++)); do
  async=$([ $((n % 2)) = 0 ] && echo true || echo false)
  (exec_train "$out" -world "${worlds[n % 3]}" -set "run.checkpoint_async=$async" 2>"$work/stderr") &
  pid=$!
  sleep "$(printf '0.%03d' $((150 + RANDOM % 650)))"
  if kill -9 $pid 2>/dev/null; then landed=$((landed + 1)); fi
  status=0
  if compgen -G "$out/checkpoints/.saving-*" >/dev/null; then saving=$((saving + 1)); fi
  wait $pid 2>/dev/null || status=$?
  if grep -v 'is missing\|not finished' "$work/stderr"; then # anything but a notice of an unfinished save
    damaged=$((damaged + 1))
  fi
  if [ $status != 137 ] && [ $status != 0 ]; then
    echo "run $n ended with status $status:"
    cat "$work/stderr"
    exit 1
  fi
  if [ -s "$out/unet/config.json" ] && [ $status = 0 ]; then # came to its end: once more from the beginning
    finished=$((finished + 1))
    [ "$(sum "$out")" = "$want" ] || { echo "run $n: other bits than the uninterrupted run"; exit 1; }
    rm -rf "$out"
  fi
  echo "kill $landed: $(ls "$out/checkpoints" 2>/dev/null | grep -c '^step' || true) checkpoints, latest $(cat "$out/checkpoints/latest" 2>/dev/null || echo none)"
done
train "$out" -world 2
[ "$(sum "$out")" = "$want" ] || { echo "other bits than the uninterrupted run"; exit 1; }
"$work/train" inspect "$out"
echo "$landed kills, $saving of them in a save, $finished runs to their end between them, $damaged warnings: the last run has the bits of the uninterrupted one"
