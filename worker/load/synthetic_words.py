"""Common words of one to ten letters: what stands in the place of others of the same length.

Words, since a made-up one of the same length would be three or four tokens instead of one.
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
a i o
an as at be by do go if in is it me my no of on or so to up us we
add all and any are bit box but can cut day end far few for get has how its job key led let low map may
new not now off old one our out own put red row run say see set she sit six sum ten the tie top try two
use via was way who why win yes yet you
also area back base best body call card care case city code come cost data date deep door down draw each
east edge even ever face fact fall fast file find fine five food form four free full game give goal gold
good hand hard have head help here high hold home hour idea into item join just keep kind know land last
late lead left less life like line link list live long look lose lost love main make many mark mean meet
mind mode more most move much name near need news next nine note once only open over page part past path
plan play poor pull push rain rate read real rest rich ring rise road rock role room root rule safe same
save seat seed seem self send ship shop show side sign size skin slow snow soft soil some song soon sort
spot star stay step stop such sure take talk task team tell term test text than that them then they thin
this time town tree true turn type unit view vote wait walk wall want warm wash wave week well west what
when wide wild will wind wine wish with wood word work year zero
about above agree ahead allow alone among apple apply asset begin below black blood board brain brand
bread break brief bring broad build chain chair chart cheap check chief child civil claim class clean
clear climb clock close cloud coast count court cover cream cross crowd cycle daily dance depth doing
doubt draft dream dress drink drive early earth eight enemy enjoy enter equal error event every exact
exist extra faith false fault field fifth fight final first floor focus force frame fresh front fruit
glass grade grand grant grass green group guess guide happy heart heavy horse hotel house human image
index inner input issue joint judge known label large later laugh layer learn least leave legal level
light limit local logic loose lower lucky lunch major maker march match maybe metal might minor mixed
model money month moral motor mount mouth movie music never night noise north novel nurse occur ocean
offer often order other outer owner panel paper party peace phase phone photo piece pilot place plain
plane plant plate point pound power press price pride prime print prior proof proud queue quick quiet
accept across action active actual advice afford agency amount animal annual answer anyone appeal appear
around arrive artist aspect assume attack attend author battle beauty before behalf behind belief belong
better beyond border bottom branch bridge bright broken budget button camera cancer career carpet castle
center chance change charge choice choose church client closed coffee column common corner couple course
create credit crisis custom damage danger debate decade decide defeat define degree demand depend design
desire detail device differ dinner direct doctor domain double driver during easily editor effect effort
either eleven emerge empire energy engine enough ensure
ability account achieve address advance against airline already analyst another applied arrange article
attempt attract average balance barrier battery because bedroom benefit between brother cabinet capable
capital captain careful central century certain chamber channel chapter charity chicken citizen classic
climate closely clothes collect college combine comfort command comment company compare complex concept
concern conduct confirm connect consist contact contain content context control convert correct council
country culture current deliver density deposit despite
absolute academic accident accurate activity actually addition adequate advanced aircraft analysis
announce anything anywhere apparent approach approval argument artistic assembly athletic attitude
audience baseball birthday boundary building business calendar campaign capacity category ceremony
champion chemical children choosing civilian clinical clothing collapse complete composed computer
conclude concrete conflict congress consider constant consumer continue contract contrast convince
advantage adventure afternoon agreement allowance alongside ambitious apartment apparatus arbitrary
assertion attention attribute authority available awareness beautiful beginning breakfast brilliant
candidate carefully celebrate character chemistry chocolate commander community companion complaint
component condition confident confusion consensus construct container continent corporate correctly
absolutely accomplish accounting adjustment affordable ambassador assessment assistance assumption
atmosphere attractive background basketball capability collection commission commitment comparison
completely compliance conclusion conference confidence connection consistent continuing continuous
conviction curriculum definition democratic department dependence depression developing difference
"""

WORDS_BY_LENGTH: Final[tuple[tuple[str, ...], ...]] = tuple(
    tuple(word for word in _TEXT.split() if len(word) == length) for length in range(1, 11)
)
"""At index 0 those of one letter."""
