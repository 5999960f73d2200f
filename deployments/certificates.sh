#!/bin/sh
# Certificates with which the Engines of a cluster and the worker know each other.
#
#   sh deployments/certificates.sh FOLDER NAME=ADDRESS...        for example: certs node1=10.0.0.11 node2=10.0.0.12
#
# Makes in FOLDER: an authority (ca.pem, ca-key.pem), for each node what its Engine needs (NAME/ca.pem, certificate.pem,
# key.pem), and the worker's own (worker/...). Run again, it keeps what there is and adds what is new. Whoever has
# ca-key.pem or worker/key.pem is root on all nodes: keep them where only you read them.
set -eu
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
umask 077
mkdir -p "$1"
cd "$1"
shift

if [ ! -f ca.pem ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -days 3650 -subj "/CN=prefect-gpu" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
    -keyout ca-key.pem -out ca.pem 2>/dev/null
fi

# certificate NAME USE ALTERNATIVE-NAMES
certificate() {
  [ ! -f "$1/certificate.pem" ] || return 0
  mkdir -p "$1"
  {
    echo "basicConstraints=CA:FALSE"
    echo "extendedKeyUsage=$2"
    [ -z "$3" ] || echo "subjectAltName=$3"
  } > "$1/extensions"
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -subj "/CN=$1" -keyout "$1/key.pem" -out "$1/request" 2>/dev/null
  openssl x509 -req -sha256 -days 825 -in "$1/request" -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
    -extfile "$1/extensions" -out "$1/certificate.pem" 2>/dev/null
  cp ca.pem "$1/ca.pem"
  rm "$1/request" "$1/extensions"
  echo "$1: made"
}

certificate worker clientAuth ""
for node in "$@"; do
  name=${node%%=*}
  address=${node#*=}
  if [ "$name" = "$node" ] || [ -z "$address" ]; then
    echo "$node: write NAME=ADDRESS" >&2
    exit 2
  fi
  if [ "$name" = worker ]; then
    echo "worker: that is the worker's own folder; give the node another name" >&2
    exit 2
  fi
  case $address in
    *[!0-9.]*) certificate "$name" serverAuth "DNS:$name,DNS:$address" ;;
    *) certificate "$name" serverAuth "DNS:$name,IP:$address" ;;
  esac
done
