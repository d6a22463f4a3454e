// The names of all datapaths. They are the values of the knob `datapath`.
#pragma once

#define WEFT_DATAPATHS(X) X(udp) X(verbs) X(xdp)
