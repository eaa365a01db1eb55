/*  Which of the selected nodes matter to the task, deduced from ground facts about them.

    Everything here is a rule; at run time only ground facts are asserted, for one refinement, and taken back
    after it. Nodes, requirements and owners are small integers that the caller has numbered, so nothing that
    a source file says ever becomes Prolog text.

    Negation is over facts only, so no predicate negates itself, directly or through another; a rule that did
    would have to stay untabled, or use tnot/1 and look at what is undefined.
*/

:- module(relevance, [refine/4]).

:- use_module(library(aggregate), [aggregate_all/3]).
:- use_module(library(error), [must_be/2]).
:- use_module(library(lists), [member/2]).

:- thread_local
    kg_task/1,        % Task: build, refactor, debug, document, test or review
    kg_candidate/3,   % Node, Label, Hop
    kg_root/1,        % Node that the request speaks of
    kg_traces/2,      % Node, Requirement
    kg_tested/1,      % Node that some test exercises
    kg_failing/1,     % Node that a failing test exercises, or that is one
    kg_defines/2,     % Container, Contained
    kg_ambiguous/1,   % Node that was linked by a name that others bear, too
    kg_owns/2,        % Owner, list of what is theirs
    kg_depends/2,     % Node, list of what it calls or imports
    kg_shared/1,      % Requirement that a root serves, or that such a one leads to; deduced
    kg_answered_for/1. % Node that an owner of a root owns for certain; deduced, in reviews only

%!  refine(+Text, +MaxInferences, -Tiers, -Denied) is det.
%
%   Text reads as facts(Task, Candidates, Roots, Tested, Failing, Ambiguous, Traces, Defines, Owns, Depends):
%   Candidates a list of c(Label, Hop, Nodes), the next four lists of nodes, the last four flat lists of pairs,
%   the second of a pair in Owns and Depends a list. That is a third of the text that the facts themselves
%   would be; reading and asserting is most of the time. It comes as a string, since the server copies and
%   expands a goal, which for a large term takes longer than all deduction.
%
%   Tiers is tiers(Core, Related): strings of sorted nodes with commas between them, which are written in a
%   fraction of the time that lists take; every other candidate is peripheral. Denied counts the
%   candidates whose ownership could not be decided within the bound: they are treated as not owned.
%
%   The facts are asserted inside the protected goal, not in its setup: a limit that strikes in a setup would
%   leave behind what was asserted so far. Throws resource_error(inferences) at the limit.

refine(Text, MaxInferences, Tiers, Denied) :-
    term_string(Facts, Text),
    must_be(ground, Facts),
    setup_call_cleanup(
        true,
        ( assert_facts(Facts),
          call_with_inference_limit(deduce(Tiers, Denied), MaxInferences, Result),
          ( Result == inference_limit_exceeded
          -> throw(error(resource_error(inferences), _))
          ;  true
          )
        ),
        forget).

assert_facts(facts(Task, Candidates, Roots, Tested, Failing, Ambiguous, Traces, Defines, Owns, Depends)) :-
    assertz(kg_task(Task)),
    forall(( member(c(Label, Hop, Nodes), Candidates), member(Node, Nodes) ),
           assertz(kg_candidate(Node, Label, Hop))),
    forall(member(Node, Roots), assertz(kg_root(Node))),
    forall(member(Node, Tested), assertz(kg_tested(Node))),
    forall(member(Node, Failing), assertz(kg_failing(Node))),
    forall(member(Node, Ambiguous), assertz(kg_ambiguous(Node))),
    assert_pairs(Traces, kg_traces),
    assert_pairs(Defines, kg_defines),
    assert_pairs(Owns, kg_owns),
    assert_pairs(Depends, kg_depends).

assert_pairs([], _).
assert_pairs([A, B|Rest], Name) :-
    Fact =.. [Name, A, B],
    assertz(Fact),
    assert_pairs(Rest, Name).

forget :-
    retractall(kg_task(_)),
    retractall(kg_candidate(_, _, _)),
    retractall(kg_root(_)),
    retractall(kg_traces(_, _)),
    retractall(kg_tested(_)),
    retractall(kg_failing(_)),
    retractall(kg_defines(_, _)),
    retractall(kg_ambiguous(_)),
    retractall(kg_owns(_, _)),
    retractall(kg_depends(_, _)),
    retractall(kg_shared(_)),
    retractall(kg_answered_for(_)),
    abolish_all_tables.

deduce(tiers(CoreText, RelatedText), Denied) :-
    assert_shared,
    assert_owned(Denied),
    findall(Tier-Node, kg_relevance_tier(Node, Tier), Found),
    findall(Node, member(core-Node, Found), Cores),
    findall(Node, member(related-Node, Found), Relateds),
    sort(Cores, Core),
    sort(Relateds, Related),
    as_text(Core, CoreText),
    as_text(Related, RelatedText).

as_text(Nodes, Text) :-
    atomic_list_concat(Nodes, ',', Atom),
    atom_string(Atom, Text).

%!  kg_relevance_tier(?Node, ?Tier) is nondet.
%
%   Core before related before peripheral; a node has one.

kg_relevance_tier(Node, Tier) :-
    kg_candidate(Node, _, _),
    ( kg_root(Node)      -> Tier = core
    ; is_promoted(Node)  -> ( kg_ambiguous(Node) -> Tier = related ; Tier = core )
    ; kg_relevant(Node)  -> Tier = related
    ;                       Tier = peripheral
    ).

%!  kg_relevant(+Node) is semidet.
%
%   At least related: what serves a requirement of a root, however long the chain of shared requirements; in
%   reviews, what the owner of a root answers for. So is what its task would promote, were its name not
%   ambiguous.

kg_relevant(Node) :- shares_requirement(Node), !.
kg_relevant(Node) :- kg_answered_for(Node), !.

%!  is_promoted(+Node) is semidet.
%
%   What each kind of task cannot do without.

is_promoted(Node) :- kg_task(Task), is_promoted(Task, Node), !.

is_promoted(debug,    Node) :- kg_candidate(Node, _, Hop), Hop =< 1.
is_promoted(debug,    Node) :- kg_failing(Node).
is_promoted(debug,    Node) :- kg_tested(Node), kg_candidate(Node, _, Hop), Hop =< 2.
is_promoted(test,     Node) :- kg_tested(Node).
is_promoted(test,     Node) :- shares_requirement(Node).
is_promoted(build,    Node) :- is_contained_with_root(Node).
is_promoted(build,    Node) :- shares_requirement(Node).
is_promoted(refactor, Node) :- is_contained_with_root(Node).
is_promoted(refactor, Node) :- kg_tested(Node), kg_candidate(Node, _, Hop), Hop =< 1.
is_promoted(document, Node) :- is_contained_with_root(Node).
is_promoted(review,   Node) :- shares_requirement(Node).
is_promoted(review,   Node) :- kg_tested(Node), kg_candidate(Node, _, Hop), Hop =< 1.

is_contained_with_root(Node) :- kg_root(Root), kg_defines(Root, Node), !.
is_contained_with_root(Node) :- kg_root(Root), kg_defines(Node, Root), !.
is_contained_with_root(Node) :- kg_root(Root), kg_defines(Parent, Root), kg_defines(Parent, Node), !.

shares_requirement(Node) :- kg_traces(Node, Requirement), kg_shared(Requirement), !.

:- table is_shared/1.

is_shared(Requirement) :- kg_root(Root), kg_traces(Root, Requirement).
is_shared(Requirement) :- is_shared(Other), kg_traces(Node, Other), kg_traces(Node, Requirement).

%   Asked once for all requirements, as ownership is below: asked for each, every one would be a table.

assert_shared :-
    forall(is_shared(Requirement), assertz(kg_shared(Requirement))).

%!  ownership(?Node)
%
%   Who owns a root owns what else is theirs, and answers for what that depends on. One table for all owners of
%   roots: who of them it is makes no difference. Tabled, so that cycles end; restrained, so that no graph
%   makes it long: what lies beyond the bound is undefined, neither true nor false.

:- table ownership(_) as max_answers(256).
:- set_prolog_flag(max_answers_for_subgoal_action, bounded_rationality).

ownership(Node) :- kg_owns(_, Nodes), owns_root(Nodes), member(Node, Nodes).
ownership(Node) :- ownership(Other), kg_depends(Other, Nodes), member(Node, Nodes).

owns_root(Nodes) :- kg_root(Root), memberchk(Root, Nodes), !.

%   findall/3 and if-then-else take an undefined answer for a true one; only an empty delay list is. Where the
%   bound was met, one undefined answer stands for all others: they are denied, and counted, so that a person
%   hears.

assert_owned(0) :-
    \+ kg_task(review),
    !.
assert_owned(Denied) :-
    findall(Node-Delays, call_delays(ownership(Node), Delays), Answers),
    assert_certain(Answers, Undefined),
    count_denied(Undefined, Denied).

assert_certain([], []).
assert_certain([Node-true|Answers], Undefined) :-
    !,
    assertz(kg_answered_for(Node)),
    assert_certain(Answers, Undefined).
assert_certain([Node-_|Answers], [Node|Undefined]) :-
    assert_certain(Answers, Undefined).

count_denied([], 0) :- !.
count_denied(Undefined, Denied) :-
    aggregate_all(count,
                  ( kg_candidate(Node, _, _),
                    \+ kg_answered_for(Node),
                    memberchk(Node, Undefined)
                  ),
                  Denied).
