# Process 1 of the guest: sets up links, RDMA devices, limits and the environment, runs the command,
# reports its status and powers the guest off.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
control=/run/control
. "$control/place" # root=, share=
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap share "$share"

# Both ends are in one namespace, because rxe of this kernel supports only the initial one. Each end
# must therefore accept packets from a local address. Neighbours are static, because a lost ARP
# packet would look like a lost RDMA packet.
links() {
  for link in all default; do
    echo 1 > "/proc/sys/net/ipv4/conf/$link/accept_local"
    echo 0 > "/proc/sys/net/ipv4/conf/$link/rp_filter"
    echo 1 > "/proc/sys/net/ipv6/conf/$link/disable_ipv6"
  done
  # An MTU of 4200 has room for 4096 bytes and RoCE's headers.
  ip -batch - <<'IP'
link set lo up
link add va mtu 4200 address 02:00:00:00:00:01 type veth peer name vb mtu 4200 address 02:00:00:00:00:02
address add 192.0.2.1/24 dev va
address add 192.0.2.2/24 dev vb
link set va up
link set vb up
neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev va nud permanent
neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 dev vb nud permanent
IP
  rdma --batch - <<'RDMA'
link add rxea type rxe netdev va
link add rxeb type rxe netdev vb
RDMA
}

# Output goes through a pipe: a port can be opened only once, and programs reopen /dev/stdout.
port=
until [ -c "$port" ]; do
  port=$(echo /dev/vport*p1)
done
exec 3>&1 > >(exec cat > "$port") 2>&1
pump=$!

links
mkdir -p /run/tmp
ulimit -l unlimited
(
  . "$control/environment"
  export PATH="$PATH:/usr/sbin:/sbin" TMPDIR=/run/tmp RDMA_GUEST=1 RDMA_GUEST_SHARE="$share"
  cd "$root" && . "$control/command"
) 3>&- < /dev/null
echo $? > "$control/status"

# Processes left by the command may hold the pipe open, so wait only 2 s for the rest of the output.
exec >&3 2>&3
(sleep 2 && kill "$pump") &
wait "$pump"
sync
echo o > /proc/sysrq-trigger
sleep 60
