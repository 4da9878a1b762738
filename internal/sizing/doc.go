// Package sizing works out how much K/V a model needs and where it fits, and advises from the
// counters of a running server which settings to change.
//
// A model's [Shape] follows from the head of its GGUF file ([ReadHeader]). [Make] makes a [Plan] of a shape
// and of the room that somebody has. [Advise] makes [Advice] of the state of a root.
//
// Every figure is a [Figure]: it says whether it was measured, read from a file, given by the
// user, assumed, or computed from the others. A figure that is not known is absent.
package sizing
