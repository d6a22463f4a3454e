// The names of all datapaths: the words of the knob `datapath`, the first one being its default.
#pragma once

#define WEFT_DATAPATHS(X) X(udp) X(verbs)
