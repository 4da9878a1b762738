// Package soak generates histories of users on a server: long, mixed, random, and equal for
// equal seeds. The package also compares the answers of two servers. Package soak starts no
// server and sends no request; package e2e plays a history on real servers.
//
// A [History] is a list of rounds. The requests of a round are made at the same time, and
// the server may be disturbed before or during the round. The text of a request depends on
// its conversation, and so on earlier answers, which [Chats] keeps.
//
//	history := soak.New(seed, config)
//	chats := soak.NewChats(history.System, text)
//	for _, round := range history.Rounds {
//		for _, request := range round.Requests {
//			messages := chats.Ask(request) // send these, compare the answers
//			chats.Answered(request, answer)
//		}
//	}
package soak
