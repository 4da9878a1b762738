// Package expose writes a state as Prometheus text, format 0.0.4.
//
// Every family of [telemetry.Metrics] that something has reported is written, then those of
// [Extra]. A family that nothing has reported is left out: its absence is not 0.
//
// # Labels
//
// Series of a model have the labels model, namespace and engine. The label model is the name of the model, or
// the first digits of its weights' digest where no name is known; models of one name are added up, since two
// series must not have the same labels. Gauges of a process have its pid besides. Gauges of a tier have the
// label root, so that a directory which several servers share is counted once by max by (root).
//
// Keys of a state come from other processes. A key that is not a series of a known metric, with
// all of its labels and a finite value, is left out.
package expose
