#!/usr/bin/env bash
# A Slurm cluster on one Debian machine: a controller, and nodes that are network namespaces with a slurmd each.
#
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2
#   deployments/slurm/cluster.sh start /var/tmp/slurm     # as root; again: nothing happens, or what is missing starts
#   export SLURM_CONF=/var/tmp/slurm/slurm.conf
#   sinfo
#   deployments/slurm/cluster.sh stop /var/tmp/slurm      # again: nothing happens
#
# `controller-stop` and `controller-start` take slurmctld away and bring it back, `node-stop NAME` and `node-start NAME`
# a node. From the environment: NODES (3), GPUS of each node (2, which are names and no devices), CPUS of each node (as
# many as the machine has), PREFIX of the nodes' names (slurm), SUBNET (10.79.0), MINUTES that a job may last
# (60), PORT of the controller (6817), RACKS that the nodes stand in, each with a switch of its own (0: Slurm knows of none),
# HIDE, folders of which nodes that are started now see nothing (none; separated by spaces).
#
# Jobs of the partition `urgent` take nodes from those of the partition `train`, which is the default one.
#
# What many clusters have, and this one only if it is asked for, from the environment of its first `start`:
#
#   ACCOUNTING=1  slurmdbd, on a MariaDB of the cluster's own (packages: slurmdbd mariadb-server-core
#                 mariadb-client-core), with two accounts: `lab`, whose QOS `two-gpus` lends two GPUs to each user at
#                 once, and `guests`, who have two together. `accounting-stop` and `accounting-start` take slurmdbd away
#                 and bring it back.
#   MEMORY=1      Slurm counts main memory, and ends jobs that take more of it than they have asked for.
#   MEMORY=kernel The kernel does: it kills a process of such a job (this machine must have control groups).
#   REST=1        slurmrestd (packages: slurmrestd slurm-wlm-jwt-plugin) on the socket run/rest.socket of the folder, and
#                 for those who have a token (`scontrol token`) on port PORT + 1000 of the address that the nodes reach.
#
# It is a cluster to try things on: everything runs as root, and nothing is kept apart.
set -euo pipefail
export HIDE=${HIDE:-}

what=${1:?start, stop, controller-stop, controller-start, accounting-stop, accounting-start, node-stop or node-start}
folder=$(realpath -m "${2:?the folder of the cluster}")
nodes=${NODES:-3} gpus=${GPUS:-2} cpus=${CPUS:-$(nproc)} prefix=${PREFIX:-slurm} subnet=${SUBNET:-10.79.0}
minutes=${MINUTES:-60} port=${PORT:-6817} racks=${RACKS:-0}
accounting=${ACCOUNTING:-0} memory=${MEMORY:-0} rest=${REST:-0}
bridge="${prefix}br"
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
export SLURM_CONF="$folder/slurm.conf"
if [[ -f $folder/cluster.env ]]; then
  # shellcheck disable=SC1091
  source "$folder/cluster.env" # what it was started with counts from then on
fi

fail() {
  echo "cluster.sh: $*" >&2
  exit 1
}

alive() { # whether the process noted in a pid file is a daemon of this cluster, which may remove the file meanwhile
  local pid
  pid=$(cat "$1" 2>/dev/null) && [[ -n $pid ]] && grep -qsa "$folder" "/proc/$pid/cmdline" "/proc/$pid/environ"
}

end() { # ends it, and waits until it has
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 0
  alive "$1" || return 0
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 100); do
    alive "$1" || return 0
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
}

write_configuration() {
  mkdir -p "$folder"/{state,log,run,spool}
  chmod 755 "$folder"
  cat >"$folder/cluster.env" <<END
nodes=$nodes gpus=$gpus cpus=$cpus prefix=$prefix subnet=$subnet minutes=$minutes port=$port bridge=$bridge racks=$racks
accounting=$accounting memory=$memory rest=$rest
END
  local key
  for key in munge jwt; do
    if [[ ! -f $folder/$key.key ]]; then
      dd if=/dev/urandom of="$folder/$key.key" bs=128 count=1 status=none
      chmod 400 "$folder/$key.key"
    fi
  done
  local megabytes number
  megabytes=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1024 * 8 / 10))
  : >"$folder/gres.conf"
  for number in $(seq "$gpus"); do
    touch "$folder/gpu$((number - 1))"
  done
  if ((gpus > 0)); then
    echo "Name=gpu File=$folder/gpu[0-$((gpus - 1))]" >"$folder/gres.conf"
  fi
  {
    cat <<END
ClusterName=$prefix
SlurmctldHost=$(hostname)($subnet.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.socket
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
SlurmdParameters=config_overrides
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/log/jobs.txt
SelectType=select/cons_tres
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=5
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=10
MinJobAge=60
GresTypes=gpu
END
    ((racks > 0)) && echo "TopologyPlugin=topology/tree"
    if [[ $memory == kernel ]]; then
      echo "ProctrackType=proctrack/cgroup"
      echo "TaskPlugin=task/cgroup"
    else
      echo "ProctrackType=proctrack/linuxproc"
      echo "TaskPlugin=task/none"
    fi
    if [[ $memory != 0 ]]; then
      echo "SelectTypeParameters=CR_Core_Memory"
      echo "DefMemPerNode=2048"
    else
      echo "SelectTypeParameters=CR_Core"
    fi
    if [[ $memory == 1 ]]; then # it looks each second, and counts what processes share once
      echo "JobAcctGatherType=jobacct_gather/linux"
      echo "JobAcctGatherParams=OverMemoryKill,UsePss"
      echo "JobAcctGatherFrequency=task=1"
    else
      echo "JobAcctGatherType=jobacct_gather/none"
    fi
    if ((accounting)); then
      echo "AccountingStorageType=accounting_storage/slurmdbd"
      echo "AccountingStorageHost=$subnet.1"
      echo "AccountingStoragePort=$((port + 1))"
      echo "AccountingStoragePass=$folder/run/munge.socket" # of munge, which takes the place of a password
      echo "AccountingStorageTRES=gres/gpu"
      echo "AccountingStorageEnforce=associations,limits,qos"
    else
      echo "AccountingStorageType=accounting_storage/none"
    fi
    if ((rest)); then
      echo "AuthAltTypes=auth/jwt"
      echo "AuthAltParameters=jwt_key=$folder/jwt.key"
    fi
    for number in $(seq "$nodes"); do
      echo "NodeName=$prefix$number NodeAddr=$subnet.$((10 + number)) CPUs=$cpus RealMemory=$megabytes" \
        "$( ((gpus > 0)) && echo "Gres=gpu:$gpus") State=UNKNOWN"
    done
    echo "PartitionName=train Nodes=$prefix[1-$nodes] Default=YES PriorityTier=1 MaxTime=$minutes" \
      "DefaultTime=$minutes State=UP"
    echo "PartitionName=urgent Nodes=$prefix[1-$nodes] PriorityTier=2 MaxTime=$minutes DefaultTime=$minutes State=UP"
  } >"$folder/slurm.conf"
  [[ $memory == kernel ]] && echo "ConstrainRAMSpace=yes" >"$folder/cgroup.conf"
  if ((racks > 0)); then
    local rack first last
    for rack in $(seq "$racks"); do
      first=$(((rack - 1) * nodes / racks + 1)) last=$((rack * nodes / racks))
      echo "SwitchName=rack$rack Nodes=$prefix[$first-$last]"
    done >"$folder/topology.conf"
    echo "SwitchName=top Switches=rack[1-$racks]" >>"$folder/topology.conf"
  fi
}

start_munge() {
  alive "$folder/run/munged.pid" && return 0
  rm -f "$folder/run/munge.socket"
  munged --force --num-threads=2 --key-file="$folder/munge.key" --socket="$folder/run/munge.socket" \
    --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" --seed-file="$folder/run/munged.seed"
}

start_network() {
  ip link show "$bridge" &>/dev/null || ip link add "$bridge" type bridge
  [[ $(ip addr show dev "$bridge") == *"inet $subnet.1/"* ]] || ip addr add "$subnet.1/24" dev "$bridge"
  ip link set "$bridge" up
}

start_database() {
  alive "$folder/run/mariadbd.pid" && return 0
  if [[ ! -d $folder/database/mysql ]]; then
    mariadb-install-db --no-defaults --user=root --datadir="$folder/database" --auth-root-authentication-method=socket \
      --skip-name-resolve --skip-test-db >"$folder/log/mariadb-install.log" 2>&1 </dev/null ||
      fail "MariaDB cannot be set up; see $folder/log/mariadb-install.log"
  fi
  mariadbd --no-defaults --user=root --datadir="$folder/database" --socket="$folder/run/database.socket" \
    --pid-file="$folder/run/mariadbd.pid" --log-error="$folder/log/mariadbd.log" --skip-networking \
    --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900 \
    >"$folder/log/mariadbd.log" 2>&1 </dev/null &
  wait_until "MariaDB" test -S "$folder/run/database.socket"
}

start_accounting() {
  start_database
  alive "$folder/run/slurmdbd.pid" && return 0
  (
    umask 077
    cat >"$folder/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.socket
DbdHost=$(hostname)
DbdAddr=$subnet.1
DbdPort=$((port + 1))
SlurmUser=root
PidFile=$folder/run/slurmdbd.pid
LogFile=$folder/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
END
    if ((rest)); then
      echo "AuthAltTypes=auth/jwt" >>"$folder/slurmdbd.conf"
      echo "AuthAltParameters=jwt_key=$folder/jwt.key" >>"$folder/slurmdbd.conf"
    fi
  )
  MYSQL_UNIX_PORT="$folder/run/database.socket" slurmdbd </dev/null # it finds its configuration beside slurm.conf
  wait_until "slurmdbd" sacctmgr --noheader list cluster
  [[ -n $(sacctmgr --noheader list cluster "$prefix") ]] || sacctmgr --immediate add cluster "$prefix" >/dev/null
}

name_accounts() { # once slurmctld has said what there is to be counted
  [[ -n $(sacctmgr --noheader list account lab) ]] && return 0
  wait_until "slurmctld's word to slurmdbd" bash -c "sacctmgr --noheader list tres | grep gpu"
  sacctmgr --immediate add qos two-gpus MaxTRESPerUser=gres/gpu=2 >/dev/null
  sacctmgr --immediate add account lab cluster="$prefix" >/dev/null
  sacctmgr --immediate add account guests cluster="$prefix" GrpTRES=gres/gpu=2 >/dev/null
  sacctmgr --immediate add user root account=lab cluster="$prefix" qos=normal,two-gpus >/dev/null
  sacctmgr --immediate add user root account=guests cluster="$prefix" >/dev/null
}


start_rest() { # two of them: one that uses tokens uses nothing else
  alive "$folder/run/slurmrestd.pid" && return 0
  rm -f "$folder/run/rest.socket"
  SLURMRESTD_SECURITY=disable_user_check slurmrestd -f "$folder/slurm.conf" -a rest_auth/local \
    "unix:$folder/run/rest.socket" >"$folder/log/slurmrestd.log" 2>&1 </dev/null &
  echo $! >"$folder/run/slurmrestd.pid"
  SLURMRESTD_SECURITY=disable_user_check SLURM_JWT=daemon slurmrestd -f "$folder/slurm.conf" -a rest_auth/jwt \
    "$subnet.1:$((port + 1000))" >"$folder/log/slurmrestd-tokens.log" 2>&1 </dev/null &
  echo $! >"$folder/run/slurmrestd-tokens.pid"
  wait_until "slurmrestd" test -S "$folder/run/rest.socket"
}

wait_until() { # what for, and what shows that it is there
  local what=$1
  shift
  for _ in $(seq 300); do
    timeout 10 "$@" &>/dev/null && return 0
    sleep 0.1
  done
  fail "$what does not come up; see $folder/log"
}

start_controller() {
  alive "$folder/run/slurmctld.pid" && return 0
  slurmctld -f "$folder/slurm.conf"
}

start_node() {
  local name=$prefix$1
  if [[ ! -e /run/netns/$name ]]; then
    ip netns add "$name"
    ip link add "$name-h" type veth peer name eth0 netns "$name"
    ip link set "$name-h" master "$bridge" up
    ip -n "$name" addr add "$subnet.$((10 + $1))/24" dev eth0
    ip -n "$name" link set lo up
    ip -n "$name" link set eth0 up
    ip -n "$name" route add default via "$subnet.1"
  fi
  alive "$folder/run/slurmd-$name.pid" && return 0
  # Debian's slurmd takes its name from its machine: a name space of its own gives it one.
  # shellcheck disable=SC2016
  nsenter --net="/run/netns/$name" unshare --uts --mount bash -c '
    hostname "$1"
    for hidden in $HIDE; do mkdir -p "$hidden" && mount -t tmpfs nothing "$hidden"; done
    exec slurmd -f "$2"' - "$name" "$folder/slurm.conf"
}

stop_node() {
  end "$folder/run/slurmd-$prefix$1.pid"
  for pid in $(ip netns pids "$prefix$1" 2>/dev/null); do # steps and what they had started
    kill -9 "$pid" 2>/dev/null || true
  done
}

number_of() {
  [[ ${1:-} == "$prefix"* && ${1#"$prefix"} =~ ^[0-9]+$ ]] || fail "node '${1:-}': give one of ${prefix}1 to $prefix$nodes"
  echo "${1#"$prefix"}"
}

wait_until_idle() {
  for _ in $(seq 300); do
    [[ $(sinfo -h -N -p train -o '%T' 2>/dev/null | grep -c -E '^(idle|mixed|allocated)$') == "$nodes" ]] && return 0
    sleep 0.1
  done
  sinfo -R >&2 || true
  fail "the nodes do not come up; see $folder/log"
}

case $what in
  start)
    [[ $EUID == 0 ]] || fail "it needs root's rights"
    for program in munged slurmctld slurmd sbatch ip unshare; do
      command -v "$program" >/dev/null || fail "$program is missing: apt-get install slurmctld slurmd slurm-client munge iproute2"
    done
    if ((accounting)); then
      for program in slurmdbd mariadbd mariadb-install-db sacctmgr; do
        command -v "$program" >/dev/null || fail "$program is missing: apt-get install slurmdbd mariadb-server-core mariadb-client-core"
      done
    fi
    if ((rest)); then
      command -v slurmrestd >/dev/null || fail "slurmrestd is missing: apt-get install slurmrestd slurm-wlm-jwt-plugin"
    fi
    [[ -f $folder/cluster.env ]] || write_configuration
    start_network
    start_munge
    ((accounting)) && start_accounting
    start_controller
    ((accounting)) && name_accounts
    ((rest)) && start_rest
    for number in $(seq "$nodes"); do start_node "$number"; done
    wait_until_idle
    echo "export SLURM_CONF=$folder/slurm.conf"
    ;;
  stop)
    [[ -f $folder/cluster.env ]] || exit 0
    end "$folder/run/slurmctld.pid"
    for number in $(seq "$nodes"); do
      stop_node "$number"
      ip netns delete "$prefix$number" 2>/dev/null || true
      ip link delete "$prefix$number-h" 2>/dev/null || true
    done
    end "$folder/run/slurmrestd.pid"
    end "$folder/run/slurmrestd-tokens.pid"
    end "$folder/run/slurmdbd.pid"
    end "$folder/run/mariadbd.pid"
    end "$folder/run/munged.pid"
    ip link delete "$bridge" 2>/dev/null || true
    rm -rf "$folder"
    ;;
  controller-stop) end "$folder/run/slurmctld.pid" ;;
  controller-start) start_controller ;;
  accounting-stop) end "$folder/run/slurmdbd.pid" ;;
  accounting-start) start_accounting ;;
  node-stop) stop_node "$(number_of "${3:-}")" ;;
  node-start) start_node "$(number_of "${3:-}")" ;;
  *) fail "$what is none of start, stop, controller-stop, controller-start, accounting-stop, accounting-start, node-stop, node-start" ;;
esac
