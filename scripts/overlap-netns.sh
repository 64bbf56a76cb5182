#!/usr/bin/env bash
# How much of the communication overlap_comm hides: ranks on two hosts that share
# nothing but a link of limited rate. The hosts are network namespaces of this machine;
# it takes root, iproute2, and Open MPI or MPICH.
#
#   [PER_HOST=1] scripts/overlap-netns.sh [RATE [ARGUMENTS OF train netcheck]]
set -euo pipefail
cd "$(dirname "$0")/.."
rate=${1:-2gbit}
[ $# -gt 1 ] || set -- "$rate" -overlap-ms 400 -elements 16000000 -max 4e6
arguments=("${@:2}") per=${PER_HOST:-1} ranks=$((2 * ${PER_HOST:-1}))

dir=$(mktemp -d) a=zg$$a b=zg$$b
trap 'ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$dir"' EXIT
ip netns add "$a" && ip netns add "$b"
ip link add "v$a" type veth peer name "v$b"
for i in 1 2; do
  host=$([ $i = 1 ] && echo "$a" || echo "$b")
  ip link set "v$host" netns "$host"
  ip -n "$host" addr add 10.77.0.$i/24 dev "v$host"
  ip -n "$host" link set lo up
  ip -n "$host" link set "v$host" up
  ip netns exec "$host" tc qdisc add dev "v$host" root tbf rate "$rate" burst 256kb latency 50ms
done

# Launchers reach a host as with ssh.
cat >"$dir/agent" <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
case \$1 in 10.77.0.1) host=$a ;; *) host=$b ;; esac
shift
exec ip netns exec \$host bash -c "\$*"
AGENT
chmod +x "$dir/agent"
go build -o "$dir/train" ./cmd/train

check() { "$@" "$dir/train" netcheck "${arguments[@]}" </dev/null; }
echo "link of $rate, $(nproc) CPUs: train netcheck ${arguments[*]}"
if run=$(command -v mpirun.openmpi); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  check timeout 300 ip netns exec "$a" "$run" -np $ranks -H 10.77.0.1:$per,10.77.0.2:$per --bind-to none \
    --mca plm_rsh_agent "$dir/agent" --mca pml ob1 --mca btl tcp,self \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24
fi
if run=$(command -v mpirun.mpich); then
  export UCX_TLS=tcp
  check timeout 300 ip netns exec "$a" "$run" -np $ranks -ppn $per -launcher rsh -launcher-exec "$dir/agent" \
    -hosts 10.77.0.1,10.77.0.2 -iface "v$a"
fi
